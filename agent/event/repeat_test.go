package event_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/volagent/volagent/agent/event"
	"github.com/volagent/volagent/volmgr/volume"
)

func busy(alloc, message string) volume.Event {
	return volume.Event{Type: "step-failed", Volume: "v", Alloc: alloc, Step: "NodeUnpublishVolume", Message: message}
}

// told returns the messages of all events that Read returns.
func told(t *testing.T, l *event.Log) (all []string) {
	t.Helper()
	for _, e := range read(t, l, event.Filter{}) {
		all = append(all, e.Alloc+" "+e.Message)
	}
	return all
}

// TestRepeats checks that the log reports a failure at once, and also a different failure. It
// reports repetitions of the same failure at ever longer intervals with a count, and reports the
// last repetition when the failure no longer repeats.
func TestRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		since := time.Now().UTC().Format("2006-01-02 15:04:05Z")
		l := open(t, "")
		expect := func(what string, want ...string) {
			t.Helper()
			if got := told(t, l); !slices.Equal(got, want) {
				t.Errorf("%s: told %q, want %q", what, got, want)
			}
		}
		l.Add(busy("a", "busy"))
		all := []string{"a busy"}
		expect("the first", all...)
		for range 8 {
			l.Add(busy("a", "busy"))
			l.Add(busy("b", "other"))
		}
		all = append(all, "b other", "a busy (8 times since "+since+")", "b other (8 times since "+since+")")
		expect("eight more", all...)
		l.Add(busy("a", "hung"))
		all = append(all, "a hung")
		expect("with other words", all...)
		for range 4 {
			time.Sleep(5 * time.Minute)
			l.Add(busy("a", "hung"))
		}
		expect("four times", all...)
		time.Sleep(12 * time.Minute)
		all = append(all, "a hung (5 times since "+since+")")
		expect("when it has ended", all...)
		l.Add(busy("a", "hung"))
		all = append(all, "a hung")
		expect("when it begins anew", all...)
		l.Add(busy("a", "hung"))
		shut(t, l)
		now := time.Now().Add(0).UTC().Format("2006-01-02 15:04:05Z")
		all = append(all, "a hung (2 times since "+now+")")
		expect("when the agent ends", all...)
	})
}

// TestRepeatsEndWithSuccess checks that after a success, the log reports the next failure at once.
func TestRepeatsEndWithSuccess(t *testing.T) {
	for _, typ := range []volume.EventType{volume.EventClaimMounted, volume.EventClaimDetached} {
		l := open(t, "")
		l.Add(busy("a", "busy"), busy("a", "busy"), volume.Event{Type: typ, Volume: "v", Alloc: "a", Message: "x"}, busy("a", "busy"))
		if got := told(t, l); !slices.Equal(got, []string{"a busy", "a x", "a busy"}) {
			t.Errorf("%s: %q", typ, got)
		}
	}
}

// TestWhatRepeats checks that refusals of the same claim count as repetitions, although each
// message contains a different duration. The log reports every transition that a user causes.
func TestWhatRepeats(t *testing.T) {
	l := open(t, "")
	for i := range 7 {
		l.Add(volume.Event{Type: "claim-refused", Volume: "v", Alloc: "b", Message: fmt.Sprintf("in use for %ds", i)})
		l.Add(volume.Event{Type: "claim-mounted", Volume: "w", Alloc: "a", Message: "pending → mounted"})
	}
	counts := map[volume.EventType]int{}
	for _, e := range read(t, l, event.Filter{}) {
		counts[e.Type]++
	}
	if counts["claim-refused"] != 1 || counts["claim-mounted"] != 7 {
		t.Errorf("told %v", counts)
	}
}

// TestPluginRestarts checks that the log reports the first restarts of a plugin one by one, because
// users check whether the plugin is ready again.
func TestPluginRestarts(t *testing.T) {
	l := open(t, "")
	for range 20 {
		l.Add(volume.Event{Type: "plugin-backing-off", Plugin: "p", Message: "gone"}, volume.Event{Type: "plugin-ready", Plugin: "p", Message: "ready"})
	}
	counts := map[volume.EventType]int{}
	for _, e := range read(t, l, event.Filter{}) {
		counts[e.Type]++
	}
	for typ, n := range counts { // the log reports the first eight events, the sixteenth, and the withheld event before the sixteenth
		if n < 9 || n > 10 {
			t.Errorf("of 20 restarts %s is told %d times", typ, n)
		}
	}
}
