package volume_test

import (
	"slices"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestCopied checks a record that comes from an automatic copy. It must have no wanted claims, and
// no side may count as present only because the copy says so.
func TestCopied(t *testing.T) {
	id := &volume.MountIdentity{ID: 7}
	held := volume.Record{Volume: volume.Volume{ID: "v", PluginID: "p", Driver: "d", ExternalID: "e"}, Generation: 9}
	held.Node = volume.NodeSide{
		Uses: volume.Uses{Attach: true, Stage: true}, Attached: volume.Present, Staged: volume.Present, Mount: id, NodeID: "n", StagingPath: "/s", Proven: true,
		PendingCalls: []volume.PendingCall{{Kind: call.NodeUnpublish, Path: "/old"}}, Seq: 1,
		Mode: &volume.Mode{Capability: call.Capability{Access: call.SingleNodeWriter, Attachment: call.FileSystem}},
	}
	held.Claims = map[string]volume.Claim{"a": {
		Alloc: "a", Seq: 1, Terms: volume.Terms{Mode: held.Node.Mode.Capability, Owner: volume.Owner{Kind: volume.OwnerNone}}, Wanted: true, State: volume.Mounted,
		Published: volume.Present, Mount: id, Target: "/t",
	}}
	free := volume.Record{Volume: held.Volume}
	attaches := plugin.Info{NodeID: "n", Caps: plugin.Caps{Attach: true}}
	for name, tt := range map[string]struct {
		r                volume.Record
		info             plugin.Info
		booted           bool
		attached, staged volume.Side
		claims, owed     int
	}{
		"free":                         {free, plugin.Info{}, false, volume.Absent, volume.Absent, 0, 0},
		"free, of a plugin that may":   {free, attaches, false, volume.Unknown, volume.Absent, 0, 0},
		"held":                         {held, attaches, false, volume.Unknown, volume.Unknown, 1, 1},
		"held, in another boot":        {held, attaches, true, volume.Unknown, volume.Absent, 0, 0},
		"held, of a plugin of unknown": {held, plugin.Info{}, false, volume.Unknown, volume.Unknown, 1, 1},
	} {
		got := volume.Copied(tt.r, volume.Observed{}, tt.info, tt.booted)
		n := got.Node
		if n.Attached != tt.attached || n.Staged != tt.staged || len(got.Claims) != tt.claims || len(n.PendingCalls) != tt.owed || n.Proven || got.Generation != 0 {
			t.Errorf("%s: %+v", name, got)
		}
		if n.Attached != volume.Absent && n.NodeID != "n" {
			t.Errorf("%s: it is detached from node %q", name, n.NodeID)
		}
		for _, c := range got.Claims {
			if c.Wanted || c.Published != volume.Unknown {
				t.Errorf("%s: a claim is %+v", name, c)
			}
		}
		if err := got.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	seen := volume.Observed{
		Staging: volume.Sight{Seen: volume.SeenMount, Identity: *id},
		Targets: map[string]volume.Sight{"a": {Seen: volume.SeenMount, Identity: volume.MountIdentity{ID: 8}}},
	}
	if got := volume.PathsOfOtherMounts(held, seen); !slices.Equal(got, []string{"/t"}) {
		t.Errorf("strangers at %q", got)
	}
}
