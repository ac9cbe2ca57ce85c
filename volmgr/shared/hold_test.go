package shared

import (
	"errors"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestConfirm checks after which calls a host records its attachment. After a detach of its own, which an
// older record of the host does not show, the host attaches the volume again.
func TestConfirm(t *testing.T) {
	who := Asker{Node: "a", Incarnation: 5, Era: Era{Epoch: 1}}
	own := Call{Executor: "a", Target: "a", Incarnation: 4, Call: call.ControllerPublish}
	detach, taken := own, own
	detach.Call = call.ControllerUnpublish
	taken.Executor, taken.Taken = "b", true
	for name, c := range map[string]struct {
		call       *Call
		attachment Attachment
		want       string
	}{
		"its own attach":     {&own, Attaching, "confirmed"},
		"confirmed before":   {nil, Attached, "nothing"},
		"its own detach":     {&detach, Detaching, "attached again"},
		"a taken call":       {&taken, Attaching, "attached again"},
		"a taken call ended": {nil, Unclear, "attached again"},
	} {
		sit := lostVolume(fenceOf(NodeReady, "")).Situation
		sit.Hold.Value.Attachment = c.attachment
		if c.call != nil {
			sit.Call = stored(CallKey("db"), *c.call)
		}
		got := "confirmed"
		txn, err := sit.Confirm(who, "op")
		var held *volume.CallError
		switch {
		case errors.As(err, &held) && held.Code == volume.CodeHeld:
			got = "attached again"
		case err != nil:
			got = err.Error()
		case len(txn.Then) == 0:
			got = "nothing"
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestEndLateDetach checks which announced calls a host ends that it has not made.
func TestEndLateDetach(t *testing.T) {
	for name, c := range map[string]struct {
		call Call
		ends bool
	}{
		"own detach":            {Call{Executor: "b", Target: "b", Call: call.ControllerUnpublish}, true},
		"own attach":            {Call{Executor: "b", Target: "b", Call: call.ControllerPublish}, false},
		"detach by a cleaning":  {Call{Executor: "b", Target: "b", Call: call.ControllerUnpublish, Taken: true}, false},
		"detach by an executor": {Call{Executor: "c", Target: "b", Call: call.ControllerUnpublish}, false},
	} {
		s := Situation{
			id: "db", Meta: stored(MetaKey, Meta{Schema: Schema, Epoch: 1}), Node: stored(NodeKey("b"), Node{Incarnation: 3, State: NodeReady}),
			Hold: stored(HoldKey("b", "db"), Hold{Operation: "op", Attachment: Detaching}), Call: stored(CallKey("db"), c.call),
		}
		txn, err := s.EndLateDetach(fencer, "op")
		if err != nil || len(txn.Then) > 0 != c.ends {
			t.Errorf("%s: %+v, %v", name, txn, err)
		}
		if !c.ends {
			continue
		}
		after, err := s.After(txn, 20)
		if h := after.Hold.Value; err != nil || after.Call.Exists() || h.Attachment != Unclear || h.By != "b" {
			t.Errorf("%s: the hold becomes %+v, the call %+v, %v", name, h, after.Call.Value, err)
		}
		if _, err := s.EndLateDetach(fencer, "another"); !errors.Is(err, ErrHoldLost) {
			t.Errorf("%s: a hold of another operation: %v", name, err)
		}
	}
}
