package event_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/event"
	"github.com/volagent/volagent/volmgr/volume"
)

// keep is the number of events that the log keeps in memory.
const keep = 4096

func numbered(from, to int) (evs []volume.Event) {
	for i := from; i <= to; i++ {
		evs = append(evs, volume.Event{Type: "staged", Message: fmt.Sprint(i)})
	}
	return evs
}

// check fails the test if got does not contain exactly the events with the numbers from..to, in
// this order.
func check(t *testing.T, got []event.Event, from, to int) {
	t.Helper()
	if len(got) != max(0, to-from+1) {
		t.Fatalf("%d events, want %d", len(got), to-from+1)
	}
	for i, e := range got {
		if e.Seq != uint64(from+i) || e.Message != fmt.Sprint(from+i) || e.Time.IsZero() || e.Time.Location() != time.UTC {
			t.Fatalf("event %d is %+v, want number %d", i, e, from+i)
		}
	}
}

// open returns a log that is closed at the end of the test. The test fails if the log cannot write
// a file.
func open(t *testing.T, dir string) *event.Log {
	t.Helper()
	l := event.Open(event.Options{Dir: dir, Warn: func(msg string, err error) { t.Errorf("%s: %v", msg, err) }})
	t.Cleanup(func() { shut(t, l) })
	return l
}

// shut closes a log and fails the test if that takes too long.
func shut(t *testing.T, l *event.Log) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l.Close(ctx)
	if ctx.Err() != nil {
		t.Error("the log did not close")
	}
}

func TestAfter(t *testing.T) {
	l := open(t, "")
	got, _ := l.After(0)
	check(t, got, 1, 0)
	l.Add(numbered(1, 3)...)
	l.Add()
	l.Add(numbered(4, 4)...)
	for after := range 6 {
		got, _ := l.After(uint64(after))
		check(t, got, after+1, 4)
	}
	got, _ = l.After(math.MaxUint64)
	check(t, got, 5, 4)
}

// TestMemoryIsBounded checks that the log drops only the oldest events from memory and keeps their
// order.
func TestMemoryIsBounded(t *testing.T) {
	for _, total := range []int{keep - 1, keep, keep + 1, keep + 100, 3*keep + 7} {
		l := open(t, "")
		for i := 0; i < total; i += 100 {
			l.Add(numbered(i+1, min(i+100, total))...)
		}
		got, _ := l.After(0)
		check(t, got, max(1, total-keep+1), total)
		got, _ = l.After(uint64(total - 10))
		check(t, got, total-9, total)
	}
	l := open(t, "")
	l.Add(numbered(1, 2*keep+5)...) // add all events in one call
	got, _ := l.After(0)
	check(t, got, keep+6, 2*keep+5)
}

// TestFollow checks that each follower receives every event once, and that a slow follower does not
// block Add.
func TestFollow(t *testing.T) {
	const total = 2000
	l := open(t, t.TempDir())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for seq := uint64(0); seq < total; {
				evs, more := l.After(seq)
				for _, e := range evs {
					if e.Seq != seq+1 {
						t.Errorf("after %d came %d", seq, e.Seq)
						return
					}
					seq = e.Seq
				}
				if seq == total {
					return
				}
				select {
				case <-more:
				case <-t.Context().Done():
					t.Error("it was not told of more")
					return
				}
			}
		})
	}
	_, never := l.After(0)
	for i := range total {
		l.Add(numbered(i+1, i+1)...)
	}
	wg.Wait()
	select {
	case <-never:
	default:
		t.Error("a follower that did not read was not told")
	}
	_, quiet := l.After(total)
	select {
	case <-quiet:
		t.Error("a follower was told of nothing")
	default:
	}
}
