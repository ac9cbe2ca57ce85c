package volume_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// stored returns a record of a volume that is not on this host.
func stored(id, plugin string) volume.Record {
	return volume.Record{Volume: volume.Volume{ID: id, PluginID: plugin, Driver: plugin + ".csi", ExternalID: "ext-" + id}}
}

// here returns a record of a volume that is connected to this host.
func here(id, plugin string) volume.Record {
	r := stored(id, plugin)
	r.Node.Attached = volume.Present
	return r
}

// TestRoom checks a plugin's limit for the number of volumes on one host. Each storage volume with
// a possible side on this host counts once, even without a claim. The limit must not affect volumes
// that are already on this host. (invariant I6)
func TestRoom(t *testing.T) {
	claimed := stored("claimed", "p")
	claimed.Claims = map[string]volume.Claim{"a": {Alloc: "a"}}
	owed := here("gone", "p")
	owed.Leftover = true
	same := here("again", "p") // the storage of a forced deregister is registered again while its calls are pending
	same.Volume.ExternalID = owed.Volume.ExternalID
	for _, tt := range []struct {
		name   string
		most   int64
		r      volume.Record
		others []volume.Record
		owed   []volume.Record
		full   bool

		reserved []volume.Volume
	}{
		{"no limit", 0, stored("new", "p"), []volume.Record{here("a", "p"), here("b", "p")}, nil, false, nil},
		{"room for one", 2, stored("new", "p"), []volume.Record{here("a", "p"), stored("free", "p")}, nil, false, nil},
		{"full", 2, stored("new", "p"), []volume.Record{here("a", "p"), claimed}, nil, true, nil},
		{"of another plugin", 1, stored("new", "p"), []volume.Record{here("a", "q")}, nil, false, nil},
		{"already here", 1, here("a", "p"), []volume.Record{here("a", "p")}, nil, false, nil},
		{"owed", 1, stored("new", "p"), nil, []volume.Record{owed}, true, nil},
		{"owed by the same storage", 1, stored("gone", "p"), []volume.Record{stored("gone", "p")}, []volume.Record{owed}, false, nil},
		{"owed and here", 2, stored("new", "p"), []volume.Record{same}, []volume.Record{owed}, false, nil},
		{"reserved", 1, stored("new", "p"), nil, nil, true, []volume.Volume{stored("b", "p").Volume}},
		{"reserved for the same volume", 1, stored("new", "p"), nil, nil, false, []volume.Volume{stored("new", "p").Volume}},
		{"reserved and here", 2, stored("new", "p"), []volume.Record{here("b", "p")}, nil, false, []volume.Volume{stored("b", "p").Volume}},
		{"reserved for another plugin", 1, stored("new", "p"), nil, nil, false, []volume.Volume{stored("b", "q").Volume}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := volume.Room(tt.r, plugin.Info{MaxVolumes: tt.most}, tt.others, tt.owed, tt.reserved)
			if full := errors.Is(err, volume.ErrRefused); full != tt.full || err != nil && !full {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestRoomNames checks that a refusal contains the limit and the names of some volumes that count.
func TestRoomNames(t *testing.T) {
	var others []volume.Record
	for i := range 7 {
		others = append(others, here(fmt.Sprint("v", i), "p"))
	}
	err := volume.Room(stored("new", "p"), plugin.Info{MaxVolumes: 7}, others, nil, nil)
	if err == nil || !strings.Contains(err.Error(), `plugin "p" can have 7 volumes on this host at once, and has 7: v0, v1, v2, v3, v4 and 2 more`) {
		t.Errorf("%v", err)
	}
}
