package event_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/volagent/volagent/agent/event"
	"github.com/volagent/volagent/volmgr/volume"
)

// read returns the events that a filter selects.
func read(t *testing.T, l *event.Log, f event.Filter) (got []event.Event) {
	t.Helper()
	if _, err := l.Read(t.Context(), f, func(e event.Event) error { got = append(got, e); return nil }); err != nil {
		t.Fatal(err)
	}
	return got
}

// files returns the file names in a directory, and the total size of the files.
func files(t *testing.T, dir string) (names []string, size int64) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // the writer has just removed this file
		}
		if err != nil {
			t.Fatal(err)
		}
		names, size = append(names, e.Name()), size+info.Size()
	}
	return names, size
}

// TestRestart checks that the log continues its events and their numbers after a restart. It tries
// different numbers of events, and a crash in the middle of a line.
func TestRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "events")
	next := 1
	for round, many := range []int{3, 0, keep + 10, 1, 2*keep + 50} {
		l := open(t, dir)
		check(t, read(t, l, event.Filter{}), 1, next-1)
		for range many {
			l.Add(numbered(next, next)...)
			next++
		}
		for _, n := range []int{1, 10, many + 2, next + 5} {
			check(t, read(t, l, event.Filter{N: n}), max(1, next-n), next-1)
		}
		shut(t, l)
		names, _ := files(t, dir)
		if len(names) != 1 {
			t.Fatalf("round %d: files %q", round, names)
		}
		path := filepath.Join(dir, names[0])
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("%v, %v", info, err)
		}
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err == nil && round%2 == 0 {
			_, err = f.WriteString(`{"time":"2026-01-01T00:00:00Z","seq":99999,"type":"sta`)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestFilter(t *testing.T) {
	dir := t.TempDir()
	begun := time.Now()
	for range 2 { // each round ends with Close, which leaves all events in files
		l := open(t, dir)
		for i := range 100 {
			l.Add(volume.Event{Type: []volume.EventType{"staged", "unstaged", "warning", "detached"}[i%4], Volume: fmt.Sprint("v", i%2), Message: fmt.Sprint(i)})
		}
		shut(t, l)
	}
	l := open(t, dir)
	l.Add(volume.Event{Type: "staged", Volume: "v1", Message: "last"})
	for _, tt := range []struct {
		f           event.Filter
		n           int
		first, last string
	}{
		{event.Filter{Volume: "v1"}, 101, "1", "last"},
		{event.Filter{Volume: "v1", N: 1}, 1, "last", "last"},
		{event.Filter{Volume: "v1", N: 52}, 52, "99", "last"},
		{event.Filter{Volume: "v0", N: 1}, 1, "98", "98"},
		{event.Filter{Volume: "none"}, 0, "", ""},
		{event.Filter{Types: []volume.EventType{"warning"}}, 50, "2", "98"},
		{event.Filter{Types: []volume.EventType{"warning"}, N: 26}, 26, "98", "98"},
		{event.Filter{Types: []volume.EventType{"warning", "staged"}, N: 3}, 3, "96", "last"},
		{event.Filter{Types: []volume.EventType{"warning"}, Volume: "v1"}, 0, "", ""},
		{event.Filter{Since: begun}, 201, "0", "last"},
		{event.Filter{Since: time.Now().Add(time.Hour)}, 0, "", ""},
	} {
		got := read(t, l, tt.f)
		if len(got) != tt.n || tt.n > 0 && (got[0].Message != tt.first || got[tt.n-1].Message != tt.last) {
			t.Errorf("%+v: %d events, %+v", tt.f, len(got), got)
		}
	}
	stop := errors.New("enough")
	if _, err := l.Read(t.Context(), event.Filter{}, func(event.Event) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("it went on: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Read(ctx, event.Filter{}, func(event.Event) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("it went on: %v", err)
	}
}

// TestSevenDays checks that the log keeps the events of seven days, with one file for each day.
func TestSevenDays(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l := open(t, dir)
		for day := range 20 {
			l.Add(volume.Event{Type: "staged", Message: fmt.Sprint(day)})
			time.Sleep(24 * time.Hour)
		}
		shut(t, l)
		l = open(t, dir) // the reopened log has no events in memory
		got := read(t, l, event.Filter{})
		if n := len(got); n < 7 || n > 8 || got[n-1].Message != "19" || got[n-1].Seq != 20 {
			t.Errorf("%d events are left: %+v", n, got)
		}
		got = read(t, l, event.Filter{Since: time.Now().Add(-3*24*time.Hour - time.Minute)})
		if len(got) != 3 || got[0].Message != "17" {
			t.Errorf("of the last three days: %+v", got)
		}
		if names, _ := files(t, dir); len(names) > 9 || !slices.IsSorted(names) {
			t.Errorf("files %q", names)
		}
		shut(t, l)
	})
}

// TestKeep checks that the log keeps events as long as Keep says, and at most a day longer. It also
// checks that the numbers continue when all events are too old.
func TestKeep(t *testing.T) {
	for _, keep := range []time.Duration{time.Hour, 30 * time.Hour, 90 * 24 * time.Hour} {
		t.Run(keep.String(), func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				o := event.Options{Dir: dir, Keep: keep, Warn: func(msg string, err error) { t.Errorf("%s: %v", msg, err) }}
				l := event.Open(o)
				const hours = 100 * 24
				for range hours {
					l.Add(volume.Event{Type: "staged"})
					time.Sleep(time.Hour)
					synctest.Wait() // the writer has written the event, and has pruned
				}
				shut(t, l)
				names, _ := files(t, dir)
				raw, err := os.ReadFile(filepath.Join(dir, names[0]))
				if err != nil {
					t.Fatal(err)
				}
				var oldest struct{ Time time.Time }
				first, _, _ := strings.Cut(string(raw), "\n")
				if err := json.Unmarshal([]byte(first), &oldest); err != nil {
					t.Fatal(err)
				}
				if age := time.Since(oldest.Time); age < keep || age > keep+25*time.Hour {
					t.Errorf("the oldest event is %s old", age)
				}

				time.Sleep(keep + 48*time.Hour)
				l = event.Open(o)
				if names, _ := files(t, dir); len(names) > 0 {
					t.Errorf("files %q", names)
				}
				l.Add(volume.Event{Type: "staged"})
				check := read(t, l, event.Filter{})
				if len(check) != 1 || check[0].Seq != hours+1 {
					t.Errorf("after a long stop: %+v", check)
				}
				shut(t, l)
			})
		})
	}
}

// TestTotalIsBounded checks that the total size of the files is limited, and that the log deletes
// the oldest files first. The events in memory remain.
func TestTotalIsBounded(t *testing.T) {
	dir := t.TempDir()
	const most = 4 << 20
	l := event.Open(event.Options{Dir: dir, MaxBytes: most})
	message := strings.Repeat("x", 590)
	const total, batch = 12_000, 500 // 8 MB of events in total
	for i := 0; i < total; i += batch {
		for range batch {
			l.Add(volume.Event{Type: "staged", Message: message})
		}
		waitWritten(t, dir, l)
	}
	shut(t, l)
	names, size := files(t, dir)
	if size > most || size < most/2 || len(names) < 5 {
		t.Errorf("%d bytes in %q", size, names)
	}
	l = open(t, dir)
	got := read(t, l, event.Filter{})
	if len(got) == 0 || got[len(got)-1].Seq != total {
		t.Fatalf("%d events", len(got))
	}
	for i, e := range got {
		if e.Seq != got[0].Seq+uint64(i) {
			t.Fatalf("after %d events comes number %d", i, e.Seq)
		}
	}
}

// The log calls Told once for each event that it stores. The call comes from the goroutine that
// adds the event, or from the one that reports the end of repetitions. Calls may overlap.
func waitWritten(t *testing.T, dir string, l *event.Log) {
	t.Helper()
	last := read(t, l, event.Filter{N: 1})[0].Seq
	for end := time.Now().Add(60 * time.Second); ; {
		names, _ := files(t, dir)
		if len(names) > 0 {
			raw, err := os.ReadFile(filepath.Join(dir, names[len(names)-1]))
			if err == nil && strings.Contains(string(raw[max(0, len(raw)-2000):]), fmt.Sprintf(`"seq":%d,`, last)) {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("event %d is not in a file", last)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestFullDisk checks that a full disk causes only the loss of events, and that the log warns once.
// When the disk has free space again, the log writes new events, and Read returns them.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("cannot mount:", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	var warned []string
	l := event.Open(event.Options{Dir: filepath.Join(dir, "events"), Warn: func(msg string, err error) {
		warned = append(warned, fmt.Sprint(msg, ": ", err))
	}})
	for range 400 {
		l.Add(volume.Event{Type: "staged", Message: strings.Repeat("x", 500)})
		time.Sleep(100 * time.Microsecond) // spread the events over several writes
	}
	if n := len(read(t, l, event.Filter{})); n != 400 {
		t.Errorf("%d events in memory", n)
	}
	if err := syscall.Mount("none", dir, "tmpfs", syscall.MS_REMOUNT, "size=1m"); err != nil {
		t.Fatal(err)
	}
	l.Add(volume.Event{Type: "staged", Message: "room again"})
	shut(t, l)
	if len(warned) != 1 || !strings.Contains(warned[0], "no space left") {
		t.Errorf("warned of %q", warned)
	}
	l = open(t, filepath.Join(dir, "events"))
	got := read(t, l, event.Filter{})
	if len(got) < 20 || len(got) > 200 || got[len(got)-1].Message != "room again" || got[len(got)-1].Seq != 401 {
		t.Errorf("%d events were written, the last %+v", len(got), got[max(0, len(got)-1):])
	}
	shut(t, l)
}

// TestNoDirectory checks that a log works even if it cannot create its directory.
func TestNoDirectory(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	warned := 0
	l := event.Open(event.Options{Dir: filepath.Join(file, "events"), Warn: func(string, error) { warned++ }})
	l.Add(numbered(1, 3)...)
	check(t, read(t, l, event.Filter{}), 1, 3)
	shut(t, l)
	if warned != 1 {
		t.Errorf("warned %d times", warned)
	}
}
