package hold

import (
	"testing"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestChangedBy compares definitions of a volume, as a host does that holds the volume.
func TestChangedBy(t *testing.T) {
	had := volume.Volume{ID: "db", Capacity: 1 << 30, Reclaim: "retain"}
	for name, c := range map[string]struct {
		change func(v *volume.Volume)
		want   volume.EventType
	}{
		"nothing":                {func(*volume.Volume) {}, ""},
		"the size":               {func(v *volume.Volume) { v.Capacity = 2 << 30 }, volume.EventExpanded},
		"a progress":             {func(v *volume.Volume) { v.Growth.Generation++ }, ""},
		"an intent":              {func(v *volume.Volume) { v.Expansion.Want = 2 << 30 }, ""},
		"another field":          {func(v *volume.Volume) { v.Reclaim = "delete" }, volume.EventUpdated},
		"a field in an expand":   {func(v *volume.Volume) { v.Reclaim, v.Growth.Generation = "delete", 3 }, volume.EventUpdated},
		"the field and the size": {func(v *volume.Volume) { v.Reclaim, v.Capacity = "delete", 2<<30 }, volume.EventExpanded},
	} {
		now := had
		c.change(&now)
		if got := changedBy("b", had, now); got.Type != c.want {
			t.Errorf("%s: %q, want %q", name, got.Type, c.want)
		}
	}
}

// TestRemoved tells hosts that a volume was removed. A host without an interest in the volume, and
// the host that has removed it, get no event. A value of a newer release is ignored.
func TestRemoved(t *testing.T) {
	var evs []volume.Event
	s := New(Options{
		Endpoints: etcd,
		Node:      "a", Events: func(more ...volume.Event) { evs = append(evs, more...) }, Concerned: func(id string) bool { return id == "db" },
	})
	for _, c := range []struct {
		value string
		want  int
	}{
		{`{"volume":"db","by":"b","how":"deleted"}`, 1},
		{`{"volume":"db","by":"b","how":"unshared"}`, 1},
		{`{"volume":"db","by":"a","how":"deleted"}`, 0},
		{`{"volume":"other","by":"b","how":"deleted"}`, 0},
		{`{"volume":"db","by":"b","how":"burnt"}`, 0},
		{`hello`, 0},
	} {
		evs = nil
		s.follower.removed(shared.Change{KV: shared.KV{Key: shared.RemovedKey, Value: []byte(c.value), Mod: 1}})
		if len(evs) != c.want {
			t.Errorf("%s: %+v", c.value, evs)
		}
	}
}
