package event_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/event"
	"github.com/volagent/volagent/volmgr/volume"
)

// FuzzFile checks an event file with random damage. The log must read the events on complete lines,
// and the next event must get an unused number.
func FuzzFile(f *testing.F) {
	line := func(seq uint64) string {
		return fmt.Sprintf(`{"time":"2026-01-01T00:00:00Z","seq":%d,"volume":"data","type":"staged","message":"%d"}`+"\n", seq, seq)
	}
	for _, text := range []string{
		line(1) + line(2), line(1) + line(2)[:40], line(1) + line(2)[:40] + "\n" + line(3), "", "\n\n", "{}\n[]\n" + line(7), line(1) + "x" + line(2), `{"seq":-1}`, `{"seq":1e3}`,
		line(1<<64 - 1), line(3) + line(1<<62), `{"seq":5,"SEQ":6,"time":null}`, line(9) + "\xff\x00" + line(10), "\r\n" + line(4),
	} {
		f.Add(text, byte(0), uint32(0), line(11))
		// Zero bytes follow the data, as after a power loss.
		f.Add(text, byte(0), uint32(70_000), "")
		// The agent has appended an event after the zero bytes.
		f.Add(text, byte(0), uint32(70_000), "\n"+line(8))
		f.Add(text, byte('x'), uint32(1<<16-1), line(12))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string, b byte, times uint32, more string) {
		if times > 140_000 {
			return
		}
		text += strings.Repeat(string(rune(b)), int(times)) + more
		path := filepath.Join(dir, time.Now().UTC().Format(time.DateOnly)+".0000.jsonl")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var whole []uint64
		for line := range strings.Lines(text) {
			var e struct {
				Time                                             time.Time
				Seq                                              uint64
				Volume, Alloc, Plugin, Part, Type, Step, Message string
			}
			if json.Unmarshal([]byte(line), &e) == nil && e.Seq > 0 && e.Seq < 1<<62 && len(line) < 64<<10 {
				whole = append(whole, e.Seq)
			}
		}
		l := event.Open(event.Options{Dir: dir, Warn: func(msg string, err error) { t.Errorf("%s: %v", msg, err) }})
		l.Add(volume.Event{Type: "staged", Message: "next"})
		shut(t, l)
		l = event.Open(event.Options{Dir: dir})
		defer shut(t, l)
		got := read(t, l, event.Filter{})
		if len(got) == 0 || got[len(got)-1].Message != "next" {
			t.Fatalf("the last of %d events is not the next one", len(got))
		}
		next := got[len(got)-1].Seq
		if len(whole) > 0 && next <= whole[len(whole)-1] {
			t.Errorf("number %d comes again after %v", next, whole)
		}
		whole = slices.DeleteFunc(whole, func(seq uint64) bool { return seq > next })
		for i, e := range got[:len(got)-1] {
			if i >= len(whole) || e.Seq != whole[i] {
				t.Fatalf("event %d has number %d, want %v", i, e.Seq, whole)
			}
		}
		if len(got)-1 != len(whole) {
			t.Errorf("%d events, want %v", len(got)-1, whole)
		}
	})
}
