package reconcile_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/reconcile"
)

// TestSweep checks the observations after the start of the agent, and after a plugin becomes ready.
// Each settled claim costs one observation and no entry, and only a few observations run at the
// same time. The queue mounts the claims that are not mounted yet.
func TestSweep(t *testing.T) {
	const n = 300
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("v%d", i)
	}
	s := newSetup(t, ids...)
	s.Start()
	for _, id := range ids {
		s.untilTaken(t, id)
	}
	untilTrue(t, "nothing is kept of volumes at rest", func() bool { return s.Kept() == 0 })
	s.Stop(t.Context())

	s.halt("") // start the queue of the next agent, which may make calls
	s.store.put(claimed(t, "new", "a"))
	steps := len(s.host.did())
	var now, most atomic.Int64
	s.host.look = func() {
		k := now.Add(1)
		for m := most.Load(); k > m && !most.CompareAndSwap(m, k); m = most.Load() {
		}
		time.Sleep(time.Millisecond)
		now.Add(-1)
	}
	s.host.mu.Lock()
	s.host.looks, s.host.looked = 0, nil
	s.host.mu.Unlock()
	changed := s.Changed(ids[n-1])
	s.Start()
	s.untilTaken(t, "new")
	<-changed // the queue has now observed the volume
	looked := func() (all, volumes int) {
		s.host.mu.Lock()
		defer s.host.mu.Unlock()
		return s.host.looks, len(s.host.looked)
	}
	untilTrue(t, "all are looked at", func() bool { _, volumes := looked(); return volumes == n+1 })
	untilTrue(t, "the new one rests", func() bool { return s.Kept() == 0 })
	if all, _ := looked(); all > n+4 {
		t.Errorf("%d looks at %d volumes in place and a new one", all, n)
	}
	if got := s.host.did()[steps:]; len(got) != 1 {
		t.Errorf("steps %q, want the publish of the new one", got)
	}
	// In addition to the sweep, the worker of the new volume may make one observation.
	if m := most.Load(); m > reconcile.GlancesAtOnce+1 {
		t.Errorf("%d looks at once", m)
	}
	s.host.mu.Lock()
	s.host.looked = nil
	s.host.mu.Unlock()
	s.PluginChanged("p")
	untilTrue(t, "all are looked at again", func() bool { _, volumes := looked(); return volumes == n+1 })
}

// TestLookKeepsNothing checks that a status request for a settled volume leaves no entry in the
// queue. Such entries would permanently use memory.
func TestLookKeepsNothing(t *testing.T) {
	s := newSetup(t, "v")
	s.Start()
	s.untilTaken(t, "v")
	untilTrue(t, "nothing is kept of volumes at rest", func() bool { return s.Kept() == 0 })
	r, _ := s.store.Volume("v")
	if _, at := s.Look(t.Context(), r); at != nil || s.Kept() != 0 {
		t.Errorf("at %+v; something is kept of %d volumes", at, s.Kept())
	}
}
