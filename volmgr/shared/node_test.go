package shared

import (
	"errors"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/plugin"
)

// TestRegister checks which agents may register under a name that is in use, and which may not.
func TestRegister(t *testing.T) {
	machine := Machine{ID: "m", DMI: "d"}
	self := Self{
		Node: "h1", Boot: "boot", Machine: machine, DataDir: "dir", Registration: "new",
		Member: Membership{ClusterID: "c", DataDir: "dir", Incarnation: 3, Registrations: []string{"old"}},
	}
	for _, c := range []struct {
		name   string
		change func(*Arrival, *Self)
		words  string // of the refusal; empty if the host may register
	}{
		{"the agent was restarted", func(*Arrival, *Self) {}, ""},
		{"the host has booted, and its lease has ended", func(a *Arrival, s *Self) { a.Live, s.Boot = Entry[Live]{}, "next" }, ""},
		{"a copy of a host that runs", func(_ *Arrival, s *Self) { s.Boot = "copy" }, "is alive"},
		{"a copy in a container of the same machine", func(_ *Arrival, s *Self) { s.DataDir = "copy" }, "is alive"},
		{"a copy of a host that is off", func(a *Arrival, s *Self) { a.Live, s.DataDir = Entry[Live]{}, "copy" }, ""},
		{"a state of an earlier release", func(_ *Arrival, s *Self) { s.Member.DataDir = "" }, ""},
		{"an agent with another state", func(_ *Arrival, s *Self) { s.Member.Registrations = nil }, "is alive"},
		{"another machine id", func(_ *Arrival, s *Self) { s.Machine.ID = "other" }, "another machine"},
		{"another DMI UUID", func(_ *Arrival, s *Self) { s.Machine.DMI = "other" }, "another machine"},
		{"no DMI UUID", func(_ *Arrival, s *Self) { s.Machine.DMI = "" }, ""},
		{"being replaced", func(a *Arrival, _ *Self) { a.Live, a.Node.Value.State = Entry[Live]{}, NodeFencing }, "is fenced"},
		{"being fenced", func(a *Arrival, s *Self) {
			a.Live, a.Node.Value, s.Undone = Entry[Live]{}, fenced(a, NodeFencing, 1), true
		}, "is fenced"},
		{"fenced", func(a *Arrival, _ *Self) { a.Live, a.Node.Value = Entry[Live]{}, fenced(a, NodeFenced, 1) }, "is fenced"},
		{"fenced, and undone", func(a *Arrival, s *Self) {
			a.Live, a.Node.Value, s.Undone = Entry[Live]{}, fenced(a, NodeFenced, 1), true
		}, ""},
		{"fenced before a restore", func(a *Arrival, _ *Self) { a.Live, a.Node.Value = Entry[Live]{}, fenced(a, NodeFenced, 0) }, ""},
	} {
		exists := KV{Key: "k", Mod: 7}
		a := Arrival{
			Meta: Entry[Meta]{KV: exists, Value: Meta{Schema: Schema, ClusterID: "c", Epoch: 1}},
			Node: Entry[Node]{KV: exists, Value: Node{Incarnation: 3, Registration: "old", Boot: "boot", Machine: machine, State: NodeReady}},
			Live: Entry[Live]{KV: exists, Value: Live{Incarnation: 3, Registration: "old"}},
		}
		s := self
		c.change(&a, &s)
		_, err := a.Register(s)
		if (err == nil) != (c.words == "") || err != nil && !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// fenced returns the node of an arrival in a state of a fencing in the given epoch.
func fenced(a *Arrival, state NodeState, epoch int64) Node {
	n := a.Node.Value
	n.State, n.Fencing = state, &Fencing{By: "h2", Era: Era{Epoch: epoch}}
	return n
}

// TestSettle registers a host in a new epoch. The host shows the epoch only after it has written its
// holds, and resume waits for that.
func TestSettle(t *testing.T) {
	exists := KV{Key: "k", Mod: 7}
	meta := Meta{Schema: Schema, ClusterID: "c", Epoch: 2}
	a := Arrival{
		Meta: Entry[Meta]{KV: exists, Value: meta},
		Node: Entry[Node]{KV: exists, Value: Node{Incarnation: 3, Registration: "old", State: NodeReady, Era: Era{Epoch: 1}}},
	}
	admitted, err := a.Register(Self{Node: "h1", Registration: "new", Member: Membership{ClusterID: "c", Incarnation: 3, Registrations: []string{"old"}}})
	if err != nil {
		t.Fatal(err)
	}
	shows := func(txn Txn) Node {
		e, err := Decode[Node](KV{Key: "k", Mod: 8, Value: txn.Then[0].Value})
		if err != nil {
			t.Fatal(err)
		}
		return e.Value
	}
	a.Node.Value = shows(admitted.Txn)
	if missing := Missing(meta, map[string]Node{"h1": a.Node.Value}); len(missing) != 1 {
		t.Errorf("a host that has not written its holds is not missing: %+v", a.Node.Value)
	}

	who := Asker{Node: "h1", Incarnation: 4, Era: meta.Era()}
	txn, err := a.Settle(who)
	if err != nil || len(txn.Then) != 1 {
		t.Fatalf("%+v, %v", txn, err)
	}
	a.Node.Value = shows(txn)
	if missing := Missing(meta, map[string]Node{"h1": a.Node.Value}); len(missing) != 0 || a.Node.Value.Incarnation != 4 {
		t.Errorf("a host that has written its holds is missing: %+v", a.Node.Value)
	}
	if txn, err := a.Settle(who); err != nil || len(txn.Then) != 0 {
		t.Errorf("a settled host writes again: %+v, %v", txn, err)
	}
}

// TestCheckNodeIDs checks which CSI node ids of holds prevent a registration.
func TestCheckNodeIDs(t *testing.T) {
	now := NodeInfo{Plugins: map[string]NodePlugin{"same": {NodeID: "a"}, "moved": {NodeID: "b"}, "silent": {}}}
	for _, c := range []struct {
		held  HeldAs
		words string // of the refusal; empty if the host may register
	}{
		{HeldAs{"same", "a"}, ""},
		{HeldAs{"moved", "a"}, `plugin "moved" on host "h1" was "a", and is now "b"`},
		{HeldAs{"moved", "b"}, ""},
		{HeldAs{"moved", ""}, ""},
		{HeldAs{"silent", "a"}, ""},
		{HeldAs{"unknown", "a"}, ""},
	} {
		err := CheckNodeIDs("h1", now, []HeldAs{{"same", "a"}, c.held})
		if errors.Is(err, ErrNodeIDMoved) != (c.words != "") || err != nil && !strings.Contains(err.Error(), c.words) {
			t.Errorf("%+v: %v", c.held, err)
		}
	}
}

// TestKeeping checks that a plugin that has not answered yet keeps its earlier answers, but not the
// earlier fence, which comes from its file.
func TestKeeping(t *testing.T) {
	earlier := NodeInfo{Plugins: map[string]NodePlugin{"p": {Driver: "d", NodeID: "n", Fence: plugin.FenceDetach}}}
	for _, fence := range []plugin.Fence{plugin.FenceNone, plugin.FenceHook} {
		now := NodeInfo{Plugins: map[string]NodePlugin{"p": {Fence: fence}}}
		if got := now.Keeping(earlier).Plugins["p"]; got.Driver != "d" || got.NodeID != "n" || got.Fence != fence {
			t.Errorf("%q: %+v", fence, got)
		}
	}
}

// TestDescribe checks that only the present incarnation of a host describes its plugins.
func TestDescribe(t *testing.T) {
	exists := KV{Key: "k", Mod: 7}
	a := Arrival{
		Meta: Entry[Meta]{KV: exists, Value: Meta{Schema: Schema, ClusterID: "c", Epoch: 1}},
		Node: Entry[Node]{KV: exists, Value: Node{Incarnation: 3, State: NodeReady}},
	}
	who := Asker{Node: "h1", Incarnation: 3, Era: a.Meta.Value.Era()}
	txn, err := a.Describe(who, nil)
	if err != nil || len(txn.If) != 2 || txn.Then[0].Key != NodeInfoKey("h1") {
		t.Errorf("%+v, %v", txn, err)
	}
	who.Incarnation = 2
	if _, err := a.Describe(who, nil); err == nil {
		t.Error("an old incarnation describes the plugins")
	}
}
