package shared_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestDifferences tests which attachments a comparison of a driver's list with the holds ends or makes.
func TestDifferences(t *testing.T) {
	held := func(node, id string, a shared.Attachment) shared.Holder {
		return shared.Holder{Node: node, Hold: shared.Hold{NodeID: id, Attachment: a}}
	}
	nodes := map[string]string{"id-a": "a", "id-b": "b", "": "broken"}
	for name, row := range map[string]struct {
		listed         []string
		holds          []shared.Holder
		extra, missing []shared.PublishedNode
	}{
		"nothing":                   {},
		"attached and held":         {listed: []string{"id-a"}, holds: []shared.Holder{held("a", "id-a", shared.Attached)}},
		"attached without a hold":   {listed: []string{"id-a", "id-b"}, holds: []shared.Holder{held("b", "id-b", shared.Attached)}, extra: []shared.PublishedNode{{Node: "a", NodeID: "id-a"}}},
		"held and not attached":     {holds: []shared.Holder{held("a", "id-a", shared.Attached)}, missing: []shared.PublishedNode{{Node: "a", NodeID: "id-a"}}},
		"being attached":            {holds: []shared.Holder{held("a", "id-a", shared.Attaching)}},
		"being detached":            {listed: []string{"id-a"}, holds: []shared.Holder{held("a", "id-a", shared.Detaching)}},
		"unknown":                   {holds: []shared.Holder{held("a", "id-a", shared.Unclear)}},
		"held without a node id":    {listed: []string{"id-a"}, holds: []shared.Holder{held("a", "", shared.Attaching)}},
		"held under an earlier id":  {listed: []string{"id-b"}, holds: []shared.Holder{held("a", "id-b", shared.Attached)}},
		"not a host of the cluster": {listed: []string{"elsewhere"}},
		"empty node id":             {listed: []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			extra, missing := shared.Published{Listed: row.listed, Nodes: nodes, Holds: row.holds}.Differences()
			if d := cmp.Diff(row.extra, extra); d != "" {
				t.Errorf("extra: %s", d)
			}
			if d := cmp.Diff(row.missing, missing); d != "" {
				t.Errorf("missing: %s", d)
			}
		})
	}
}

// TestCorrect tests that a host corrects an attachment only if no hold and no call contradicts that, and
// never without a node id.
func TestCorrect(t *testing.T) {
	attached := shared.Hold{Attachment: shared.Attached, NodeID: "n"}
	for name, row := range map[string]struct {
		call, hold            any
		node                  string
		seen                  int64 // the revision at which the hold was compared, if it is not the present one
		canUnpublish, canMark bool
	}{
		"free":         {node: "n", canUnpublish: true},
		"held":         {node: "n", hold: attached, canMark: true},
		"held anew":    {node: "n", hold: attached, seen: 6},
		"other id":     {node: "m", hold: attached},
		"detaching":    {node: "n", hold: shared.Hold{Attachment: shared.Detaching, NodeID: "n"}},
		"call":         {node: "n", call: shared.Call{Executor: "x"}},
		"call of held": {node: "n", call: shared.Call{Executor: "x"}, hold: attached},
		"no node id":   {},
	} {
		t.Run(name, func(t *testing.T) {
			c := shared.Call{Executor: "me", Target: "x"}
			o, err := shared.ParseOrphan("me", "v", c, shared.Result{Reads: [][]shared.KV{
				kv(t, shared.MetaKey, meta), kv(t, shared.NodeKey("me"), node), kv(t, shared.CallKey("v"), row.call), nil, nil, kv(t, shared.HoldKey("x", "v"), row.hold),
			}})
			if err != nil {
				t.Fatal(err)
			}

			txn, err := o.BeginUnpublish(me, row.node, time.Second, time.Now())
			if (err == nil) != row.canUnpublish || err != nil && !errors.Is(err, shared.ErrNotOrphan) {
				t.Errorf("unpublish: %v, want possible: %v", err, row.canUnpublish)
			}
			if err == nil {
				var made shared.Call
				if err := json.Unmarshal(txn.Then[0].Value, &made); err != nil {
					t.Fatal(err)
				}
				if !made.TakenOver("me") || made.Call != call.ControllerUnpublish || made.Target != "x" || made.NodeID != "n" {
					t.Errorf("the call is %+v", made)
				}
			}
			if _, err := o.MarkMissing(me, shared.PublishedNode{Node: "x", NodeID: row.node, Mod: max(row.seen, 5)}); (err == nil) != row.canMark {
				t.Errorf("mark: %v, want possible: %v", err, row.canMark)
			}
		})
	}
}
