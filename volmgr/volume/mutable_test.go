package volume

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
)

// TestMutated checks the beginning and the end of a modify. At the beginning, the new values are an
// intent. At the end, they are the values of the volume. Neither step may change a map of the
// earlier volume.
func TestMutated(t *testing.T) {
	v := Volume{ID: "data", Mutable: map[string]string{"a": "1", "b": "2"}}
	open := v.Mutating(map[string]string{"a": "9", "c": "3"})
	if got := open.Mutations(map[string]string{"a": "1", "b": "2"}); !maps.Equal(got, map[string]string{"a": "1"}) {
		t.Errorf("in doubt, so asked again: %v", got)
	}
	done := open.Mutated(map[string]string{"a": "9"})
	if !maps.Equal(done.Mutable, map[string]string{"a": "9", "b": "2"}) || !maps.Equal(done.Modifying, map[string]string{"c": "3"}) {
		t.Errorf("one is settled: %+v", done)
	}
	if all := done.Mutated(map[string]string{"c": "3"}); all.Modifying != nil || all.Mutable["c"] != "3" {
		t.Errorf("all are settled: %+v", all)
	}
	if v.Mutable["a"] != "1" || len(open.Modifying) != 2 || v.Modifying != nil {
		t.Errorf("the volume before was changed: %+v, %+v", v, open)
	}
	if cmd := Modify("my disk", "note=a b", "x=1"); suggest.Words(cmd) != "volctl volume modify 'my disk' 'note=a b' x=1" {
		t.Errorf("the command is %s", cmd)
	}
	if err := (Volume{ID: "data", Mutable: map[string]string{"": "x"}}).CheckMutable(); !errors.Is(err, ErrInvalid) {
		t.Errorf("no name: %v", err)
	}
}

// TestReaches checks that Admit refuses a claim only if the plugin says that this host cannot reach
// the volume.
func TestReaches(t *testing.T) {
	here := map[string]string{"Zone": "a", "rack": "1"}
	in := func(ts ...map[string]string) []map[string]string { return ts }
	for name, tt := range map[string]struct {
		caps    plugin.Caps
		host    map[string]string
		volume  []map[string]string
		refused bool
	}{
		"the same":                  {plugin.Caps{Topology: true}, here, in(map[string]string{"zone": "a", "rack": "1"}), false},
		"a wider place":             {plugin.Caps{Topology: true}, here, in(map[string]string{"zone": "a"}), false},
		"one of several":            {plugin.Caps{Topology: true}, here, in(map[string]string{"zone": "b"}, map[string]string{"zone": "a"}), false},
		"another zone":              {plugin.Caps{Topology: true}, here, in(map[string]string{"zone": "b"}), true},
		"values have a case":        {plugin.Caps{Topology: true}, here, in(map[string]string{"zone": "A"}), true},
		"a key that the host lacks": {plugin.Caps{Topology: true}, here, in(map[string]string{"zone": "a", "row": "1"}), true},
		"no zone fits":              {plugin.Caps{Topology: true}, here, in(map[string]string{"zone": "b"}, map[string]string{"zone": "c"}), true},
		"a plugin without":          {plugin.Caps{}, here, in(map[string]string{"zone": "b"}), false},
		"a host that does not say":  {plugin.Caps{Topology: true}, nil, in(map[string]string{"zone": "b"}), false},
		"a volume that is anywhere": {plugin.Caps{Topology: true}, here, nil, false},
	} {
		r := Record{Volume: Volume{
			ID: "data", PluginID: "ebs", Topologies: tt.volume, Capabilities: []call.Capability{{Access: call.SingleNodeWriter, Attachment: call.FileSystem}},
		}}
		next, err := Admit(r, Request{Alloc: "web", Target: "/t"}, plugin.Info{Caps: tt.caps, Topology: tt.host}, time.Now())
		if errors.Is(err, ErrRefused) != tt.refused || (len(next.Claims) == 0) != tt.refused {
			t.Errorf("%s: %v, %d claims", name, err, len(next.Claims))
		}
		if tt.refused && !strings.Contains(err.Error(), "this host is at Zone=a rack=1") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// An alloc keeps its claim even if the plugin later reports another topology.
	r := Record{Volume: Volume{ID: "data", Capabilities: []call.Capability{{Access: call.SingleNodeWriter, Attachment: call.FileSystem}}}}
	r, err := Admit(r, Request{Alloc: "web", Target: "/t"}, plugin.Info{}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r.Volume.Topologies = in(map[string]string{"zone": "b"})
	if _, err := Admit(r, Request{Alloc: "web", Target: "/t"}, plugin.Info{Caps: plugin.Caps{Topology: true}, Topology: here}, time.Now()); err != nil {
		t.Errorf("the same again: %v", err)
	}
}
