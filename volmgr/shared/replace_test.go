package shared

import (
	"errors"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// stored returns the entry of a key that exists.
func stored[T any](key string, v T) Entry[T] {
	return Entry[T]{KV: KV{Key: key, Create: 1, Mod: 7}, Value: v}
}

func replacement(state NodeState, proof bool) Replacement {
	r := Replacement{
		Meta: stored(MetaKey, Meta{Schema: Schema}), Own: stored(NodeKey("b"), Node{Incarnation: 3, State: NodeReady}),
		Node: stored(NodeKey("a"), Node{Incarnation: 5, State: state, Machine: Machine{ID: "m"}}), node: "a",
		Live: Entry[Live]{KV: KV{Key: LiveKey("a")}}, Proof: Entry[Proof]{KV: KV{Key: FencedKey("a", 5)}},
	}
	if proof {
		r.Proof = stored(FencedKey("a", 5), Proof{Kind: Replaced})
	}
	return r
}

// TestReplacement checks each step of a replacement, also when it was begun before.
func TestReplacement(t *testing.T) {
	who, now := Asker{Node: "b", Incarnation: 3}, time.Unix(9, 0)
	alive, unknown := replacement(NodeReady, false), replacement(NodeReady, false)
	alive.Live = stored(LiveKey("a"), Live{})
	unknown.Node = Entry[Node]{}
	for name, tt := range map[string]struct {
		r    Replacement
		ops  int // the operations of Begin
		want error
	}{
		"ready":      {replacement(NodeReady, false), 2, nil},
		"away":       {replacement(NodeAway, false), 2, nil},
		"draining":   {replacement(NodeDraining, false), 2, nil},
		"begun":      {replacement(NodeFencing, true), 0, nil},
		"fencing":    {replacement(NodeFencing, false), 2, nil},
		"alive":      {alive, 0, volume.ErrRefused},
		"not a host": {unknown, 0, volume.ErrNotFound},
	} {
		txn, err := tt.r.Begin(who, Proof{Who: "me", Reason: "burnt", At: now})
		if len(txn.Then) != tt.ops || !errors.Is(err, tt.want) {
			t.Errorf("%s: %+v, %v", name, txn, err)
		}
	}

	r := replacement(NodeFencing, true)
	r.Info = stored(NodeInfoKey("a"), NodeInfo{Plugins: map[string]NodePlugin{"san": {ControllerTimeout: time.Hour}}})
	sit := Situation{
		id: "db", Node: r.Node, Volume: stored(VolumeKey("db"), Definition{Volume: volume.Volume{PluginID: "san"}}), Use: stored(UseKey("db"), Use{Access: call.SingleNodeWriter, Holder: "a", Generation: 1}),
		Hold: stored(HoldKey("a", "db"), Hold{Attachment: Attached, NodeID: "id-a", Operation: "op"}), Call: Entry[Call]{KV: KV{Key: CallKey("db")}},
	}
	txn, err := r.Drop(who, sit, now)
	after, aerr := sit.After(txn, 20)
	if err != nil || aerr != nil || after.Hold.Exists() || !after.Use.Value.same(Use{Generation: 2}) {
		t.Errorf("after the drop: %+v, %v, %v", after, err, aerr)
	}
	if c := after.Call.Value; c.Executor != "a" || c.Call != call.ControllerUnpublish || c.NodeID != "id-a" || c.Incarnation != 5 || c.Deadline != time.Hour {
		t.Errorf("the call for the old attachment is %+v", c)
	}
	// A storage call must not hide that the volume is still attached.
	calls := map[string]struct {
		c    Call
		want error
		made string // the executor of the call after the drop
	}{
		"expand by the host":     {Call{Executor: "a", Call: call.ControllerExpand}, nil, "a"},
		"expand by another host": {Call{Executor: "c", Call: call.ControllerExpand}, volume.ErrRefused, ""},
		"attach by an executor":  {Call{Executor: "c", Call: call.ControllerPublish, Target: "a", NodeID: "id-a"}, nil, "c"},
		"attach of another host": {Call{Executor: "c", Call: call.ControllerPublish, Target: "c", NodeID: "id-c"}, volume.ErrRefused, ""},
	}
	for name, tt := range calls {
		busy := sit
		busy.Call = stored(CallKey("db"), tt.c)
		txn, err := r.Drop(who, busy, now)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
		if tt.want != nil {
			continue
		}
		after, err := busy.After(txn, 20)
		if c := after.Call.Value; err != nil || c.Executor != tt.made || !c.attachment() || c.NodeID != "id-a" {
			t.Errorf("%s: the call for the old attachment is %+v, %v", name, c, err)
		}
	}

	if _, err := replacement(NodeReady, true).Drop(who, sit, now); !errors.Is(err, volume.ErrRefused) {
		t.Errorf("a drop without a beginning: %v", err)
	}

	txn, err = r.End(who, now)
	n, derr := Decode[Node](KV{Key: r.Node.Key, Value: txn.Then[0].Value, Mod: 20})
	if err != nil || derr != nil || n.Value.Incarnation != 6 || n.Value.Machine != (Machine{}) || n.Value.State != NodeAway {
		t.Errorf("the end: %+v, %v", n.Value, err)
	}
}
