package volume_test

import (
	"reflect"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestRestored checks that a side in a backup counts as present only if the mount table can confirm
// the side.
func TestRestored(t *testing.T) {
	mount := &volume.MountIdentity{Boot: "b", ID: 7}
	live, gone := volume.Owner{Kind: volume.OwnerPID, PID: 7}, volume.Owner{Kind: volume.OwnerPID, PID: 8}
	owners := living{live: {Life: volume.LifeRunning}}
	claim := func(alloc string, o volume.Owner) volume.Claim {
		return volume.Claim{Alloc: alloc, Wanted: true, State: volume.Mounted, Terms: volume.Terms{Owner: o}, Target: "/t/" + alloc, Published: volume.Present, Mount: mount}
	}
	old := volume.Record{
		Volume: volume.Volume{ID: "a", PluginID: "p"},
		Node: volume.NodeSide{
			Mode: &volume.Mode{}, Uses: volume.Uses{Attach: true, Stage: true}, Attached: volume.Present, Staged: volume.Present, StagingPath: "/s", Mount: mount, Proven: true,
		},
		Claims: map[string]volume.Claim{"none": claim("none", volume.Owner{Kind: volume.OwnerNone}), "live": claim("live", live), "gone": claim("gone", gone)},
	}
	wanted := func(r volume.Record) map[string]bool {
		w := map[string]bool{}
		for alloc, c := range r.Claims {
			w[alloc] = c.Wanted
		}
		return w
	}
	r := volume.Restored(old, false, false, owners)
	if n := r.Node; n.Attached != volume.Unknown || n.Staged != volume.Present || n.Proven {
		t.Errorf("in the same boot: %+v", n)
	}
	if got := wanted(r); !reflect.DeepEqual(got, map[string]bool{"none": true, "live": true, "gone": false}) || r.Claims["none"].Published != volume.Present {
		t.Errorf("claims: %v, %+v", got, r.Claims)
	}
	if got := wanted(volume.Restored(old, false, true, owners)); !reflect.DeepEqual(got, map[string]bool{"none": false, "live": true, "gone": false}) {
		t.Errorf("on a host that is being drained: %v", got)
	}
	unseen := old
	unseen.Node.Mount = nil // the volume is staged without a mount
	if got := volume.Restored(unseen, true, false, owners).Node.Staged; got != volume.Unknown {
		t.Errorf("a staging that no look can show is %q", got)
	}
	if !reflect.DeepEqual(wanted(old), map[string]bool{"none": true, "live": true, "gone": true}) || old.Node.Attached != volume.Present {
		t.Error("the record of the backup was written through")
	}
}

func TestDifferences(t *testing.T) {
	a := volume.Volume{ID: "a", PluginID: "p", ExternalID: "x", CapacityMin: 5, RegisteredAt: now, Secrets: map[string]call.SecretRef{"k": {Sealed: "v1.one"}}}
	b := a
	b.RegisteredAt = now.Add(1)
	if got := volume.Differences(a, b); got != nil {
		t.Errorf("when it was registered is no difference: %q", got)
	}
	b.CapacityMin, b.Reclaim, b.Secrets = 6, "delete", map[string]call.SecretRef{"k": {Sealed: "v1.two"}}
	want := []string{"capacity_min is 5 here and 6 in the backup", `reclaim is not set here and "delete" in the backup`, "its secrets differ"}
	if got := volume.Differences(a, b); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q", got)
	}
}
