package shared_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
)

// kv returns a key with an encoded value, or a missing key for nil.
func kv(t *testing.T, key string, value any) []shared.KV {
	t.Helper()
	if value == nil {
		return nil
	}
	raw, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return []shared.KV{{Key: key, Value: raw, Create: 1, Mod: 5}}
}

var (
	meta = shared.Meta{Schema: shared.Schema, ClusterID: "c", Epoch: 1}
	node = shared.Node{Incarnation: 3, State: shared.NodeReady}
	me   = shared.Asker{Node: "me", Incarnation: 3, Era: shared.Era{Epoch: 1}}
)

// TestTakeOverCall tests which calls a host takes over, and the states that these calls get.
func TestTakeOverCall(t *testing.T) {
	attach := shared.Call{Executor: "x", Incarnation: 1, Call: call.ControllerPublish, Target: "x", NodeID: "node-x", Task: "t"}
	with := func(change func(*shared.Call)) shared.Call {
		c := attach
		change(&c)
		return c
	}
	for name, row := range map[string]struct {
		call             shared.Call
		executor, target any
		hold             any
		want             string // "unpublish", "delete", "not orphan" or "refused"
	}{
		"publish":             {call: attach, want: "unpublish"},
		"unpublish":           {call: with(func(c *shared.Call) { c.Call = call.ControllerUnpublish }), want: "unpublish"},
		"create":              {call: with(func(c *shared.Call) { c.Call, c.Target, c.NodeID = call.CreateVolume, "", "" }), want: "delete"},
		"no node id":          {call: with(func(c *shared.Call) { c.NodeID = "" }), want: "refused"},
		"executor is alive":   {call: attach, executor: shared.Live{}, want: "not orphan"},
		"target is alive":     {call: with(func(c *shared.Call) { c.Target = "y" }), target: shared.Live{}, hold: shared.Hold{}, want: "not orphan"},
		"target has no hold":  {call: with(func(c *shared.Call) { c.Target = "y" }), target: shared.Live{}, want: "unpublish"},
		"own call":            {call: with(func(c *shared.Call) { c.Executor = "me" }), want: "not orphan"},
		"executor replaced":   {call: attach, executor: shared.Live{Incarnation: 2}, target: shared.Live{Incarnation: 2}, want: "unpublish"},
		"executor restarted":  {call: attach, executor: shared.Live{Incarnation: 2}, target: shared.Live{Incarnation: 2}, hold: shared.Hold{}, want: "not orphan"},
		"executor continues":  {call: attach, executor: shared.Live{Incarnation: 1}, target: shared.Live{Incarnation: 1}, want: "not orphan"},
		"taken before":        {call: with(func(c *shared.Call) { c.Taken = true }), executor: shared.Live{Incarnation: 2}, want: "not orphan"},
		"replaced by me":      {call: with(func(c *shared.Call) { c.Executor, c.Target = "me", "me" }), executor: shared.Live{Incarnation: 3}, target: shared.Live{Incarnation: 3}, want: "unpublish"},
		"target is gone also": {call: with(func(c *shared.Call) { c.Target = "y" }), want: "unpublish"},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := shared.ParseOrphan("me", "v", row.call, shared.Result{Reads: [][]shared.KV{
				kv(t, shared.MetaKey, meta), kv(t, shared.NodeKey("me"), node), kv(t, shared.CallKey("v"), row.call),
				kv(t, shared.LiveKey(row.call.Executor), row.executor), kv(t, shared.LiveKey(row.call.Target), row.target), kv(t, shared.HoldKey(row.call.Target, "v"), row.hold),
			}})
			if err != nil {
				t.Fatal(err)
			}

			txn, err := o.TakeOverCall(me, time.Now())
			switch {
			case errors.Is(err, shared.ErrNotOrphan):
				if row.want != "not orphan" {
					t.Errorf("the call is no orphan")
				}
			case err != nil:
				if row.want != "refused" {
					t.Errorf("refused: %v", err)
				}
			case txn.Then[0].Kind == shared.OpDelete:
				if row.want != "delete" {
					t.Errorf("the call is deleted")
				}
			default:
				var c shared.Call
				if err := json.Unmarshal(txn.Then[0].Value, &c); err != nil {
					t.Fatal(err)
				}
				if row.want != "unpublish" || c.Executor != "me" || c.Call != call.ControllerUnpublish || c.NodeID != "node-x" || c.Task != "" || !c.Taken {
					t.Errorf("the call becomes %+v, want %s", c, row.want)
				}
			}
		})
	}
}

// TestTakeOverLaterCall checks that a host takes over and reclaims only the call that it has watched. The same
// executor may have announced a later call for the same target meanwhile, and make it.
func TestTakeOverLaterCall(t *testing.T) {
	watched := shared.Call{
		Executor: "me", Operation: "first", Call: call.ControllerUnpublish, Target: "me", NodeID: "node-me", Since: time.Unix(1, 0), Fence: true, Deadline: time.Second,
	}
	for name, later := range map[string]func(*shared.Call){
		"the same call":      nil,
		"another operation":  func(c *shared.Call) { c.Operation = "second" },
		"a new incarnation":  func(c *shared.Call) { c.Incarnation = 1 },
		"another kind":       func(c *shared.Call) { c.Call = call.ControllerPublish },
		"a repeated attempt": func(c *shared.Call) { c.Since = time.Unix(2, 0) },
	} {
		for _, who := range []string{"me", "other"} { // me takes over the call of its own fencing, other reclaims its own
			was := watched
			was.Target = map[string]string{"me": "other", "other": "other"}[who]
			is := was
			if later != nil {
				later(&is)
			}
			o, err := shared.ParseOrphan(who, "v", was, shared.Result{Reads: [][]shared.KV{
				kv(t, shared.MetaKey, shared.Meta{}), kv(t, shared.NodeKey(who), shared.Node{Incarnation: 2, State: shared.NodeReady}), kv(t, shared.CallKey("v"), is),
				nil, nil, kv(t, shared.HoldKey("other", "v"), shared.Hold{}),
			}})
			if err != nil {
				t.Fatal(err)
			}
			asker := shared.Asker{Node: who, Incarnation: 2}
			txn, err := o.TakeOverCall(asker, time.Now())
			if who == "other" {
				txn, err = o.Reclaim(asker)
			}
			if (err == nil && len(txn.Then) > 0) != (later == nil) || later != nil && !errors.Is(err, shared.ErrNotOrphan) {
				t.Errorf("%s: %s decides on %v, %v", name, who, txn.Then, err)
			}
		}
	}
}

// TestTask tests in which states of a task each of its transactions is possible.
func TestTask(t *testing.T) {
	type state struct{ executor, task, id string }
	for name, row := range map[string]struct {
		state
		result                          *shared.TaskResult
		take, decline, giveback, delete bool
	}{
		"asked":          {state: state{"r", "t", "t"}, take: true, decline: true, delete: true},
		"taken":          {state: state{"me", "t", "t"}, giveback: true},
		"ended":          {state: state{"r", "t", "t"}, result: &shared.TaskResult{}, delete: true},
		"replaced":       {state: state{"r", "", "t"}, delete: true},
		"asked for more": {state: state{"r", "u", "t"}, delete: true},
		"taken over":     {state: state{"other", "", "t"}, delete: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := shared.Call{Executor: row.executor, Task: row.task, Call: call.ControllerPublish, Target: "r", NodeID: "n"}
			task := shared.Task{ID: row.id, Requester: "r", Call: call.ControllerPublish, NodeID: "n", Result: row.result}
			e, err := shared.ParseErrand("me", "me", "v", shared.Result{Reads: [][]shared.KV{
				kv(t, shared.MetaKey, meta), kv(t, shared.NodeKey("me"), node), nil, kv(t, shared.CallKey("v"), c), kv(t, shared.TaskKey("me", "v"), task),
			}})
			if err != nil {
				t.Fatal(err)
			}

			for step, one := range map[string]struct {
				possible bool
				by       func() (shared.Txn, error)
			}{
				"take":     {row.take, func() (shared.Txn, error) { return e.Take(me, time.Second, time.Now()) }},
				"decline":  {row.decline, func() (shared.Txn, error) { return e.Decline(me, "no") }},
				"return":   {row.giveback, func() (shared.Txn, error) { return e.Return(me, shared.TaskResult{}) }},
				"withdraw": {row.delete, func() (shared.Txn, error) { return e.Withdraw(me) }},
			} {
				if _, err := one.by(); (err == nil) != one.possible {
					t.Errorf("%s: %v, want possible: %v", step, err, one.possible)
				}
			}
		})
	}
}
