package shared

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
		{"fenced", func(a *Arrival, _ *Self) { a.Node.Value.State = NodeFenced }, "is being fenced"},
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

// TestMoved checks which plugins count as moved to another CSI node id.
func TestMoved(t *testing.T) {
	info := func(ids map[string]string) (n NodeInfo) {
		n.Plugins = map[string]NodePlugin{}
		for id, node := range ids {
			n.Plugins[id] = NodePlugin{NodeID: node}
		}
		return n
	}
	recorded := info(map[string]string{"same": "a", "moved": "a", "also-moved": "a", "silent": "a", "gone": "a"})
	now := info(map[string]string{"same": "a", "moved": "b", "also-moved": "c", "silent": "", "new": "b"})
	if d := cmp.Diff([]string{"also-moved", "moved"}, now.Moved(recorded)); d != "" {
		t.Error(d)
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
