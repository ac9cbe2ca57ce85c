package volume_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestPendingChanges checks that PendingChanges returns all unfinished changes, and no finished
// ones.
func TestPendingChanges(t *testing.T) {
	refused := volume.Refusal{Step: call.NodeExpand, Size: 2 << 30, Code: "Internal", Message: "no"}
	vol := func(id string, e volume.Expansion, modifying map[string]string) volume.Record {
		return volume.Record{Volume: volume.Volume{ID: id, PluginID: "ebs", Expansion: e, Modifying: modifying}}
	}
	early, late := time.Unix(100, 0), time.Unix(200, 0)
	snap := func(name, id string, since time.Time, group bool, volumes ...string) volume.SnapshotIntent {
		return volume.SnapshotIntent{PluginID: "ebs", Driver: "ebs.csi", Name: name, ID: id, Since: since, Group: group, Volumes: volumes}
	}
	got := volume.PendingChanges([]volume.Record{
		vol("e", volume.Expansion{Refused: volume.Refusal{Step: call.ControllerExpand, Size: 3}}, nil), // this expansion has finished with a refusal
		vol("d", volume.Expansion{Node: 2 << 30, Refused: refused}, nil),
		vol("c", volume.Expansion{Node: 2 << 30}, nil),
		vol("b", volume.Expansion{Want: 1 << 30}, map[string]string{"x": "1", "note": "a b"}),
		vol("a", volume.Expansion{}, nil),
	}, []volume.SnapshotIntent{snap("nightly", "snap-1", late, false, "b"), snap("all", "", early, true, "b", "c")})
	want := []volume.PendingChange{
		{Subject: `volume "b"`, Message: "expanding to 1GiB", Command: remedy.Of(remedy.ShowVolume, "b")},
		{
			Subject: `volume "b"`, Message: "it is unknown whether modifying note=a b x=1 had an effect",
			Command: remedy.Of(remedy.ModifyVolume, "b", "note=a b", "x=1"),
		},
		{Subject: `volume "c"`, Message: "its storage has 2GiB; its contents are expanded when it is mounted for writing", Command: remedy.Of(remedy.ShowVolume, "c")},
		{
			Subject: `volume "d"`, Message: "its storage has 2GiB; its contents were not expanded to that size: NodeExpandVolume: Internal: no",
			Command: remedy.Of(remedy.ShowVolume, "d"),
		},
		{
			Subject: `group snapshot "all"`, Since: early, Message: `of "b", "c", plugin "ebs": whether it was made is not known`,
			Command: remedy.Of(remedy.ListSnapshots, "ebs"),
		},
		{
			Subject: `snapshot "nightly"`, Since: late, Message: `of "b", plugin "ebs": "snap-1" has not been seen to be ready`,
			Command: remedy.Of(remedy.ListSnapshots, "ebs"),
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
