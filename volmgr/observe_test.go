package volmgr_test

import (
	"testing"

	"github.com/volagent/volagent/volmgr/volume"
)

// TestObserveBesideGlimpse checks that Observe does not observe a path again that the caller has
// just observed. Observe must observe all other paths.
func TestObserveBesideGlimpse(t *testing.T) {
	m, _ := manager(t)
	r := volume.Record{
		Node:   volume.NodeSide{StagingPath: "/proc", Watches: []volume.Watch{{Path: "/proc"}}},
		Claims: map[string]volume.Claim{"a": {Alloc: "a", Target: "/sys", Terms: volume.Terms{At: "/nowhere"}}},
	}
	seen := func(now volume.Glimpse) string {
		o := m.Observe(t.Context(), r, now)
		return string(o.Staging.Seen + "," + o.Watched["/proc"].Seen + "," + o.Targets["a"].Seen + "," + o.Binds["a"].Seen)
	}
	if got := seen(volume.Glimpse{}); got != "mount,mount,mount," {
		t.Errorf("all looked at: %s", got)
	}
	if got := seen(volume.Glimpse{Path: "/proc", Sight: volume.Sight{Seen: volume.SeenDead}}); got != "dead,dead,mount," {
		t.Errorf("/proc is known to be dead: %s", got)
	}
}
