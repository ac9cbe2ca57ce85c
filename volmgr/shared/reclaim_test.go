package shared

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
)

// TestReclaim writes the hold of a host in a new epoch. A call for the attachment of the host that the
// restored store shows again is deleted, also if the store has the hold. The call of another host stays.
func TestReclaim(t *testing.T) {
	h := Hold{Access: call.SingleNodeWriter, Operation: "o", Attachment: Attached, NodeID: "n"}
	held := func(p *Place) {
		p.Hold = stored(holdKey, h)
		p.Use = stored(useKey, Use{Access: h.Access, Holder: "a", Generation: 1})
	}
	target := func(node string) func(*Place) {
		return func(p *Place) {
			p.Call = stored(callKey, Call{Executor: "b", Call: call.ControllerUnpublish, Target: node})
		}
	}
	for _, c := range []struct {
		name  string
		state []func(*Place)
		keys  string
	}{
		{"the hold is missing", with(defined), ops("+"+holdKey, "+"+useKey)},
		{"the hold is missing, with a call", with(defined, target("a")), ops("+"+holdKey, "+"+useKey, "-"+callKey)},
		{"the store has the hold", with(defined, held), ""},
		{"the store has the hold, with a call", with(defined, held, target("a")), ops("+"+holdKey, "-"+callKey)},
		{"the store has the hold, with another call", with(defined, held, target("b")), ""},
	} {
		p := newPlace(c.state...)
		txn, err := p.Reclaim(hostA, p.Volume.Value.Volume, h)
		if got := strings.Join(keysOf(txn), " "); err != nil || got != c.keys {
			t.Errorf("%s: got %q, %v\nwant %q", c.name, got, err, c.keys)
		}
	}
}

// TestReclaimOtherKind writes the hold of a host that the restored store shows with another right. A host uses the
// name of its operation again, so the name does not show that both are the same hold. Other hosts must see the
// right that the host uses.
func TestReclaimOtherKind(t *testing.T) {
	writer, reader := Hold{Access: call.MultiNodeSingleWriter, Operation: "o"}, Hold{Access: call.MultiNodeSingleWriter, Operation: "o", Reader: true}
	single, multi := Hold{Access: call.SingleNodeWriter, Operation: "o"}, Hold{Access: call.MultiNodeMultiWriter, Operation: "o"}
	user := UserKey("db", "a")
	for _, c := range []struct {
		name        string
		shown, held Hold
		holder      string // as the store shows it after the transaction
		users       string // the operation on the key of the user
	}{
		{"a writer, shown as a reader", reader, writer, "a", "-" + user},
		{"a reader, shown as a writer", writer, reader, "", "+" + user},
		{"one host alone, shown as one of several", multi, single, "a", "-" + user},
		{"one of several, shown as the only one", single, multi, "", "+" + user},
	} {
		p := newPlace(defined, func(p *Place) {
			p.Hold = stored(holdKey, c.shown)
			use := Use{Access: c.shown.Access, Generation: 1}
			if holds(c.shown.Access, c.shown.Reader) {
				use.Holder = "a"
			} else {
				p.Users = []Entry[User]{stored(user, User{})}
			}
			p.Use = stored(useKey, use)
		})
		txn, err := p.Reclaim(hostA, p.Volume.Value.Volume, c.held)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		sit, err := Situation{id: "db", Hold: p.Hold, Use: p.Use, Call: p.Call}.After(txn, 20)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if h, u := sit.Hold.Value, sit.Use.Value; h != c.held || u.Access != c.held.Access || u.Holder != c.holder || len(u.Rivals) > 0 {
			t.Errorf("%s: the store shows the hold %+v and the use %+v", c.name, h, u)
		}
		if !slices.Contains(keysOf(txn), c.users) {
			t.Errorf("%s: the transaction %q lacks %q", c.name, keysOf(txn), c.users)
		}

		ask := Ask{Operation: c.held.Operation, Access: c.held.Access, Reader: c.held.Reader}
		if _, ok := (Situation{id: "db", Hold: p.Hold}).Granted(ask); ok {
			t.Errorf("%s: the host gets the right without a transaction", c.name)
		}
		if _, ok := sit.Granted(ask); !ok {
			t.Errorf("%s: the host has no hold after the transaction", c.name)
		}
	}
}

// TestUndoneAfterResume checks that no host undoes a call or an attachment while the cluster is suspended.
func TestUndoneAfterResume(t *testing.T) {
	meta := Meta{Schema: Schema, ClusterID: "c", Epoch: hostA.Era.Epoch, EpochTail: hostA.Era.Tail}
	left := Call{Executor: "b", Call: call.ControllerPublish, Target: "b", NodeID: "n"}
	for _, suspended := range []string{"", "restored"} {
		meta.Suspended = suspended
		o := Orphan{
			Meta: stored(MetaKey, meta), Node: stored(NodeKey("a"), Node{Incarnation: hostA.Incarnation, State: NodeReady}),
			Call: stored(callKey, left), id: "db", call: left,
		}
		if _, err := o.TakeOverCall(hostA, time.Unix(9, 0)); (err == nil) != (suspended == "") {
			t.Errorf("take over, suspended %q: %v", suspended, err)
		}
		o.Call = Entry[Call]{KV: KV{Key: callKey}}
		if _, err := o.BeginUnpublish(hostA, "n", 0, time.Unix(9, 0)); (err == nil) != (suspended == "") {
			t.Errorf("detach, suspended %q: %v", suspended, err)
		}
		o.Hold = stored(HoldKey("b", "db"), Hold{Attachment: Attached, NodeID: "n"})
		if _, err := o.MarkMissing(hostA, PublishedNode{Node: "b", NodeID: "n", Mod: o.Hold.Mod}); (err == nil) != (suspended == "") {
			t.Errorf("attach again, suspended %q: %v", suspended, err)
		}
	}
}

// TestReclaimFence checks that the target of a detach which a fencing has left only ends the call, and does
// not make it.
func TestReclaimFence(t *testing.T) {
	left := Call{Executor: "c", Call: call.ControllerUnpublish, Target: "b", NodeID: "id-b", Fence: true}
	for name, c := range map[string]struct {
		executor Entry[Live]
		ends     bool
	}{
		"its executor is gone":     {Entry[Live]{}, true},
		"it belongs to no agent":   {stored(LiveKey("c"), Live{Incarnation: 1}), true},
		"the fencing is continued": {stored(LiveKey("c"), Live{}), false},
	} {
		o := Orphan{
			Meta: stored(MetaKey, Meta{Schema: Schema, Epoch: 1}), Node: stored(NodeKey("b"), Node{Incarnation: 3, State: NodeReady}),
			Call: stored(CallKey("db"), left), Executor: c.executor, Hold: stored(HoldKey("b", "db"), Hold{Operation: "op", Attachment: Attached}), node: "b", id: "db", call: left,
		}
		txn, err := o.Reclaim(fencer)
		if (err == nil) != c.ends {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := o.TakeOverCall(fencer, time.Unix(9, 0)); !errors.Is(err, ErrNotOrphan) {
			t.Errorf("%s: the target takes the call over: %v", name, err)
		}
		if err != nil {
			continue
		}
		after, err := Situation{id: "db", Hold: o.Hold, Call: o.Call}.After(txn, 20)
		if h := after.Hold.Value; err != nil || after.Call.Exists() || h.Attachment != Unclear || h.By != "b" {
			t.Errorf("%s: the hold becomes %+v, the call %+v, %v", name, h, after.Call.Value, err)
		}
	}
}

// TestReclaimTakenOver checks which calls the target only ends after a host has taken them over and is gone. Only
// a target that is attaching the volume has a step that leads to the end of the call.
func TestReclaimTakenOver(t *testing.T) {
	for name, c := range map[string]struct {
		hold Hold
		ends bool
	}{
		"the detach of a fencing":    {Hold{Operation: "op", Attachment: Unclear, By: "d", NodeID: "id-b"}, true},
		"a detach, executed late":    {Hold{Operation: "op", Attachment: Detaching, NodeID: "id-b"}, true},
		"an attach of the target":    {Hold{Operation: "op", Attachment: Attaching, NodeID: "id-b"}, false},
		"an attach, admitted before": {Hold{Operation: "op", Attachment: Attaching, NodeID: "id-b", Incarnation: 2}, false},
	} {
		left := Call{Executor: "d", Operation: "fence", Call: call.ControllerUnpublish, Target: "b", NodeID: "id-b", Fence: true}
		o := Orphan{
			Meta: stored(MetaKey, Meta{Schema: Schema, Epoch: 1}), Node: stored(NodeKey("c"), Node{Incarnation: 3, State: NodeReady}),
			Call: stored(CallKey("db"), left), Hold: stored(HoldKey("b", "db"), c.hold), node: "c", id: "db", call: left,
		}
		txn, err := o.TakeOverCall(Asker{Node: "c", Incarnation: 3, Era: Era{Epoch: 1}}, time.Unix(9, 0))
		taken, aerr := Situation{id: "db", Hold: o.Hold, Call: o.Call}.After(txn, 20)
		if err != nil || aerr != nil || !taken.Call.Value.TakenOver("c") {
			t.Fatalf("%s: the call becomes %+v, %v, %v", name, taken.Call.Value, err, aerr)
		}

		o.Node, o.node = stored(NodeKey("b"), Node{Incarnation: 3, State: NodeReady}), "b"
		o.Call, o.Hold, o.call = taken.Call, taken.Hold, taken.Call.Value
		txn, err = o.Reclaim(fencer)
		after, aerr := Situation{id: "db", Hold: o.Hold, Call: o.Call}.After(txn, 21)
		if err != nil || aerr != nil {
			t.Fatalf("%s: %v, %v", name, err, aerr)
		}
		is := after.Hold.Value
		if ended := !after.Call.Exists() && is.Attachment == Unclear && is.By == "b"; ended != c.ends {
			t.Errorf("%s: the hold becomes %+v, the call %+v", name, is, after.Call.Value)
		}
		if back := after.Call.Value; !c.ends && (back.Executor != "b" || back.Taken || is != c.hold) {
			t.Errorf("%s: the hold becomes %+v, the call %+v", name, is, back)
		}
	}
}

// TestNoteLate checks that a ControllerPublishVolume which was taken over while the volume was mounted is
// noted in the hold.
func TestNoteLate(t *testing.T) {
	for name, c := range map[string]struct {
		c    Call
		late string
	}{
		"publish while mounted":   {Call{Executor: "c", Call: call.ControllerPublish, Target: "a", NodeID: "id-a", Mounted: true}, "c"},
		"publish before":          {Call{Executor: "c", Call: call.ControllerPublish, Target: "a", NodeID: "id-a"}, ""},
		"unpublish while mounted": {Call{Executor: "c", Call: call.ControllerUnpublish, Target: "a", NodeID: "id-a", Mounted: true}, ""},
	} {
		o := Orphan{
			Meta: stored(MetaKey, Meta{Schema: Schema, Epoch: 1}), Node: stored(NodeKey("b"), Node{Incarnation: 3, State: NodeReady}),
			Call: stored(CallKey("db"), c.c), Hold: stored(HoldKey("a", "db"), Hold{Operation: "op"}), node: "b", id: "db", call: c.c,
		}
		txn, err := o.TakeOverCall(fencer, time.Unix(9, 0))
		sit, aerr := Situation{id: "db", Hold: o.Hold, Call: o.Call}.After(txn, 20)
		if err != nil || aerr != nil || sit.Hold.Value.Late != c.late || sit.Call.Value.Mounted {
			t.Errorf("%s: the hold becomes %+v, the call %+v, %v", name, sit.Hold.Value, sit.Call.Value, err)
		}

		// The target itself takes the call back.
		o.Meta, o.Node, o.node = stored(MetaKey, Meta{Schema: Schema, Epoch: 1}), stored(NodeKey("a"), Node{Incarnation: 3, State: NodeReady}), "a"
		txn, err = o.Reclaim(Asker{Node: "a", Incarnation: 3, Era: Era{Epoch: 1}})
		sit, aerr = Situation{id: "db", Hold: o.Hold, Call: o.Call}.After(txn, 20)
		if err != nil || aerr != nil || sit.Hold.Value.Late != c.late || sit.Call.Value.Executor != "a" {
			t.Errorf("%s, taken back: the hold becomes %+v, the call %+v, %v", name, sit.Hold.Value, sit.Call.Value, err)
		}
	}
}
