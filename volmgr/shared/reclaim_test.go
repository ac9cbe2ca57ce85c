package shared

import (
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

// TestUndoneAfterResume checks that no host undoes a call or an attachment while the cluster is suspended.
func TestUndoneAfterResume(t *testing.T) {
	meta := Meta{Schema: Schema, ClusterID: "c", Epoch: hostA.Era.Epoch, EpochTail: hostA.Era.Tail}
	for _, suspended := range []string{"", "restored"} {
		meta.Suspended = suspended
		o := Orphan{
			Meta: stored(MetaKey, meta), Node: stored(NodeKey("a"), Node{Incarnation: hostA.Incarnation, State: NodeReady}),
			Call: stored(callKey, Call{Executor: "b", Call: call.ControllerPublish, Target: "b", NodeID: "n"}), id: "db", executor: "b", target: "b",
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
