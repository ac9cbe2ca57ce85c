package dockervol

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// TestReap checks that the reaper removes a reference only if two consecutive passes find no mount
// and no container that uses the volume.
func TestReap(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(w *world, s *Service)
		passes  int
		stays   bool
	}{
		"nobody uses it":         {func(*world, *Service) {}, 2, false},
		"one look":               {func(*world, *Service) {}, 1, true},
		"a namespace has it":     {func(w *world, _ *Service) { w.elsewhere = []string{"process 7"} }, 5, true},
		"a table is not read":    {func(w *world, _ *Service) { w.elseIs = errors.New("busy") }, 5, true},
		"the runtime has one":    {func(w *world, _ *Service) { w.using = []string{"web"} }, 5, true},
		"no answer":              {func(w *world, _ *Service) { w.usingIs = errors.New("no daemon") }, 5, true},
		"a young reference":      {func(w *world, _ *Service) { w.clock = w.clock.Add(-11 * time.Second) }, 5, true},
		"a container starts":     {func(_ *world, s *Service) { s.activity.beginMount("docker") }, 5, true},
		"one of podman's starts": {func(_ *world, s *Service) { s.activity.beginMount("podman") }, 2, false},
	} {
		w, s := newWorld(t, "data")
		must(t, s.Create(t.Context(), docker, "data", nil))
		w.mounted(s, "data", "a")
		w.mounted(s, "data", "b")
		w.clock = w.clock.Add(70 * time.Second)
		c.prepare(w, s)
		for range c.passes {
			s.Reap(t.Context())
		}
		if stays := len(w.claims()) == 1 && len(w.refs("data")) == 2; stays != c.stays || !stays && (len(w.claims()) > 0 || len(w.refs("data")) > 0) {
			t.Errorf("%s: claims %q, references %q", name, w.claims(), w.refs("data"))
		}
	}
}

// TestReapInTurn checks that the reaper counts only consecutive passes.
func TestReapInTurn(t *testing.T) {
	w, s := newWorld(t, "data")
	must(t, s.Create(t.Context(), docker, "data", nil))
	w.mounted(s, "data", "a")
	w.clock = w.clock.Add(time.Hour)
	for range 3 {
		w.using = nil
		s.Reap(t.Context())
		w.using = []string{"restarting"}
		s.Reap(t.Context())
	}
	w.want("claims", w.claims(), "data docker")
	w.using = nil
	s.Reap(t.Context())
	s.Reap(t.Context())
	w.want("claims", w.claims())
	w.want("events", w.events, "runtime-created", "owner-gone")
}

// TestReapOrphans checks that the reaper completes the work of an agent that was killed between two
// steps.
func TestReapOrphans(t *testing.T) {
	w, s := newWorld(t, "data", "other")
	must(t, s.Create(t.Context(), docker, "data", nil))
	w.mounted(s, "data", "a")
	v := w.names[volume.RuntimeKey("docker", "data")]
	w.names[v.Key()] = v.Without(func(volume.RuntimeRef) bool { return true }) // the reference is gone, but the claim is not detached
	w.volumes["other"].Claims["docker"] = volume.Claim{Alloc: "docker", Seq: 9, Wanted: true, Terms: volume.Terms{Owner: volume.Owner{Kind: volume.OwnerRuntime, Runtime: "docker", Volume: "lost"}}}
	w.volumes["other"].Claims["web"] = volume.Claim{Alloc: "web", Seq: 10, Wanted: true}
	s.Reap(t.Context())
	w.want("claims", w.claims(), "other web")
}

// TestReapStartedAgain checks a restarted container, which mounts the volume for the same id. The
// restart resets the age of the reference, even if the Mount happens during a pass.
func TestReapStartedAgain(t *testing.T) {
	w, s := newWorld(t, "data")
	must(t, s.Create(t.Context(), docker, "data", nil))
	w.mounted(s, "data", "a")
	w.clock = w.clock.Add(time.Hour)
	s.Reap(t.Context())
	w.mounted(s, "data", "a") // the process of the container does not exist yet
	s.Reap(t.Context())
	s.Reap(t.Context())
	w.want("references", w.refs("data"), "a")
	w.clock = w.clock.Add(time.Hour)
	s.Reap(t.Context())
	w.asking = func() { w.asking = nil; w.mounted(s, "data", "a") }
	s.Reap(t.Context())
	w.want("references after a mount within a look", w.refs("data"), "a")
	w.want("claims", w.claims(), "data docker")
	w.want("events", w.events, "runtime-created")
	// The age of a reference begins when a long Mount ends.
	w.mount = func(context.Context) error { w.clock = w.clock.Add(2 * time.Minute); return nil }
	w.mounted(s, "data", "a")
	s.Reap(t.Context())
	s.Reap(t.Context())
	w.want("references after a long mount", w.refs("data"), "a")
	w.clock = w.clock.Add(time.Hour)
	s.Reap(t.Context())
	s.Reap(t.Context())
	w.want("references at the end", w.refs("data"))
	if len(s.activity.touched) > 0 {
		t.Errorf("kept of what is gone: %v", s.activity.touched)
	}
}

// TestReapAfterStart checks references that the agent reads from disk when it starts. Such a
// reference may be new, even if its stored time looks old because the clock was changed. Its age
// therefore counts from the start of the agent.
func TestReapAfterStart(t *testing.T) {
	for _, jump := range []time.Duration{0, 24 * time.Hour, -24 * time.Hour} {
		w, before := newWorld(t, "data")
		must(t, before.Create(t.Context(), docker, "data", nil))
		w.mounted(before, "data", "a")
		w.clock = w.clock.Add(jump)
		s := w.next()
		for range 3 {
			s.Reap(t.Context())
		}
		w.want("references at first", w.refs("data"), "a")
		w.clock = w.clock.Add(61 * time.Second)
		s.Reap(t.Context())
		s.Reap(t.Context())
		w.want("references after a minute", w.refs("data"))
	}
}

// TestReapStampsAll checks that the age of all references starts at the same time, even if a
// runtime needs long for its first answer.
func TestReapStampsAll(t *testing.T) {
	ids := []string{"d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7", "d8", "d9", "d10"}
	w, before := newWorld(t, append(ids, "data")...)
	must(t, before.Create(t.Context(), docker, "data", nil))
	for _, id := range ids {
		w.mounted(before, "data", id)
		must(t, before.Create(t.Context(), docker, id, nil))
		w.mounted(before, id, id)
	}
	s := w.next()
	s.Reap(t.Context())
	w.clock = w.clock.Add(youngest)
	w.asking = func() { w.clock = w.clock.Add(10 * time.Second) } // docker needs this long for each answer
	s.Reap(t.Context())
	s.Reap(t.Context())
	w.want("claims", w.claims())
	w.want("references", w.refs("data"))
	if got := s.Doubts(); len(got) > 0 {
		t.Errorf("in doubt: %+v", got)
	}
}

// TestDoubts checks that Doubts returns the references that no container explains, and why their
// claim stays.
func TestDoubts(t *testing.T) {
	w, s := newWorld(t, "data")
	must(t, s.Create(t.Context(), docker, "data", nil))
	for _, id := range []string{"a", "b", "c"} {
		w.mounted(s, "data", id)
	}
	s.Reap(t.Context())
	if got := s.Doubts(); len(got) > 0 {
		t.Errorf("of young references: %+v", got)
	}
	w.clock = w.clock.Add(time.Hour)
	is := func(what string, leaked int, kept string) {
		t.Helper()
		s.Reap(t.Context())
		want := []Doubt{{Runtime: "docker", Name: "data", VolumeID: "data", Alloc: "docker", Since: w.clock, Leaked: leaked, Of: 3, Kept: kept}}
		if leaked == 0 {
			want = nil
		}
		if got := s.Doubts(); !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	w.elsewhere = []string{"process 7", "process 8", "process 9"}
	is("all in use", 0, "")
	w.elsewhere = []string{"process 7"}
	is("one in use", 2, "process 7")
	w.elseIs = errors.New("busy")
	is("no mount namespaces", 3, "cannot determine which mount namespaces contain its mount: busy")
	w.elseIs, w.elsewhere, w.usingIs = nil, nil, errors.New("no daemon")
	is("no answer", 3, "cannot determine which containers use it: no daemon")
	w.usingIs, w.using = nil, []string{"web"}
	is("a container that starts", 3, "web may start to use it")
	w.using = nil
	is("nothing", 3, "")
	s.Reap(t.Context())
	w.want("claims", w.claims())
	w.mounted(s, "data", "a")
	w.elsewhere = []string{"process 7"}
	must(t, s.Unmount(t.Context(), docker, "data", "a"))
	w.clock = w.clock.Add(time.Hour)
	s.Reap(t.Context())
	if got := s.Doubts(); len(got) != 1 || got[0].Leaked != 1 || got[0].Kept != "process 7" {
		t.Errorf("given back under a container: %+v", got)
	}
}
