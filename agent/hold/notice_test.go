package hold

import (
	"context"
	"fmt"
	"maps"
	"slices"
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

// mapRecords are records in memory, by volume.
type mapRecords struct {
	noRecords
	all map[string]volume.Record
}

func (m mapRecords) Volume(id string) (volume.Record, bool) { r, ok := m.all[id]; return r, ok }

func (m mapRecords) Volumes() []volume.Record { return slices.Collect(maps.Values(m.all)) }

func (m mapRecords) ChangeShared(_ context.Context, key string, fn func(volume.Record, bool) (volume.Record, bool)) error {
	r, ok := m.all[key]
	if now, put := fn(r, ok); put {
		m.all[key] = now
	}
	return nil
}

// TestRereadAll checks that a host with many volumes reads their definitions in a few requests. After an outage,
// all hosts do that at the same time. A volume that the cluster does not have keeps its definition.
func TestRereadAll(t *testing.T) {
	const volumes = 2*rereadAtOnce + 50
	s, store, _ := registeredHost(t)
	records := map[string]volume.Record{}
	for i := range volumes {
		v := volume.Volume{ID: fmt.Sprintf("v%d", i), PluginID: "p", Shared: true, Capacity: 1}
		records[v.ID] = volume.Record{Volume: v}
		v.Capacity = 2
		if i == 0 {
			continue
		}
		op := shared.Put(shared.VolumeKey(v.ID), shared.Entry[shared.Definition]{}.Encode(shared.Definition{Volume: v}))
		if _, err := store.Do(t.Context(), shared.Txn{Then: []shared.Op{op}}); err != nil {
			t.Fatal(err)
		}
	}
	records["own"] = volume.Record{Volume: volume.Volume{ID: "own"}}
	s.Records, s.Wake, store.transactions = mapRecords{all: records}, func(string) {}, 0

	if err := s.follower.rereadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if store.transactions != 3 {
		t.Errorf("%d transactions for %d volumes instead of 3", store.transactions, volumes)
	}
	for id, r := range records {
		want := int64(2)
		switch id {
		case "v0":
			want = 1
		case "own":
			want = 0
		}
		if r.Volume.Capacity != want {
			t.Errorf("volume %s has the capacity %d instead of %d", id, r.Volume.Capacity, want)
		}
	}
}
