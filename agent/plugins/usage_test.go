package plugins

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// stored returns a Usage for a new state database, to which the function fill has written.
func stored(t *testing.T, fill func(*statedb.Tx)) Usage {
	t.Helper()
	db, err := statedb.Open(filepath.Join(t.TempDir(), "state.db"), statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := db.Update(t.Context(), func(tx *statedb.Tx) error { fill(tx); return nil }); err != nil {
		t.Fatal(err)
	}
	return Usage{Records: records.Store{DB: db}}
}

// TestUsage checks that mounted volumes, leftovers of forced deregisters and the volumes of tests
// count as uses of their plugin, and that a volume without mounts does not.
func TestUsage(t *testing.T) {
	mounted := volume.Record{
		Volume: volume.Volume{ID: "mounted", PluginID: "p", Driver: "d", ExternalID: "e1"},
		Node:   volume.NodeSide{Staged: volume.Present, StagingPath: "/s", Mount: &volume.MountIdentity{FSType: "fuse"}},
		Claims: map[string]volume.Claim{"a": {Alloc: "a", Wanted: true, Target: "/t", Published: volume.Present, Mount: &volume.MountIdentity{FSType: "fuse"}}},
	}
	left := volume.Record{
		Leftover: true, Volume: volume.Volume{ID: "left", PluginID: "p", Driver: "d", ExternalID: "e2"}, Node: volume.NodeSide{Attached: volume.Present},
	}
	u := stored(t, func(tx *statedb.Tx) {
		tx.PutVolume(mounted)
		tx.PutVolume(volume.Record{Volume: volume.Volume{ID: "idle", PluginID: "q", Driver: "d", ExternalID: "e3"}})
		statedb.Leftovers.Put(tx, statedb.LeftoverOf(left, time.Unix(1, 0)))
		statedb.Plugins.Put(tx, plugin.Record{ID: "tested", Scratch: &plugin.Scratch{ID: "s"}})
	})

	if got := u.InUse("p"); !slices.Equal(got, []string{"left", "mounted"}) {
		t.Errorf("in use through p: %q", got)
	}
	if n := u.FUSEClaims("p"); n != 1 {
		t.Errorf("%d claims with a FUSE mount", n)
	}
	if len(u.InUse("q")) != 0 || !u.HasVolumes("q") || u.HasVolumes("r") {
		t.Errorf("q has a volume that is not in use: %q, %t; r has none: %t", u.InUse("q"), u.HasVolumes("q"), u.HasVolumes("r"))
	}
	if len(u.InUse("tested")) != 1 || len(u.Scratches()) != 1 {
		t.Errorf("the volume of a test: %q", u.InUse("tested"))
	}
}

// TestDeadlock checks when a plugin gets the warning: only if docker runs the plugin and also uses
// the plugin's volumes.
func TestDeadlock(t *testing.T) {
	u := stored(t, func(tx *statedb.Tx) {
		tx.PutVolume(volume.Record{Volume: volume.Volume{ID: "v", PluginID: "p", Driver: "d", ExternalID: "e"}})
		statedb.RuntimeVolumes.Put(tx, volume.RuntimeVolume{Runtime: plugin.RuntimeDocker, Name: "data", VolumeID: "v"})
	})
	set := Set{Usage: u}
	run := func(runtime string) []supervisor.Status {
		return []supervisor.Status{{Running: map[string]string{"container.runtime": runtime}}}
	}
	for _, tt := range []struct {
		status supervisor.Status
		warns  bool
	}{
		{supervisor.Status{ID: "p", Parts: run(plugin.RuntimeDocker)}, true},
		{supervisor.Status{ID: "p", Parts: run(plugin.RuntimePodman)}, false},
		{supervisor.Status{ID: "q", Parts: run(plugin.RuntimeDocker)}, false},
	} {
		if words := set.deadlock(tt.status); strings.Contains(words, "(data)") != tt.warns {
			t.Errorf("plugin %s of %v: %q", tt.status.ID, tt.status.Parts[0].Running, words)
		}
	}
}
