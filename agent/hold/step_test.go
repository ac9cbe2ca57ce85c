package hold

import (
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestJustAdmitted checks that only the call which the admission has announced needs no announcement of its
// own. A ControllerPublishVolume right after a ControllerUnpublishVolume is another call.
func TestJustAdmitted(t *testing.T) {
	r := volume.Record{Volume: volume.Volume{ID: "db", Shared: true}}
	publish := shared.AnnouncedCall{
		Asker: shared.Asker{Node: "h1", Incarnation: 3}, Operation: "op", Call: call.ControllerPublish, Target: "h1", NodeID: "n1",
	}
	for name, c := range map[string]struct {
		call     call.Method
		attached volume.Side
		want     bool
	}{
		"after the admission":             {call.ControllerPublish, volume.Absent, true},
		"after a detach":                  {call.ControllerUnpublish, volume.Absent, false},
		"after an attach without success": {call.ControllerPublish, volume.Unknown, false},
	} {
		s := New(Options{Endpoints: etcd, Node: "h1"})
		r.Node.Attached = c.attached
		s.cached["db"] = shared.Situation{Call: shared.Entry[shared.Call]{
			KV:    shared.KV{Key: shared.CallKey("db"), Mod: 7},
			Value: shared.Call{Executor: "h1", Target: "h1", Incarnation: 3, Operation: "op", NodeID: "n1", Call: c.call},
		}}
		if got := s.Steps().justAdmitted(r, volume.Action{Kind: call.ControllerPublish}, publish); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
