package member

import (
	"slices"
	"testing"

	"github.com/volagent/volagent/agent/etcd/wire"
	"github.com/volagent/volagent/volmgr/shared"
)

func TestSupportedSchema(t *testing.T) {
	kv := func(key, value string) KV { return KV{Key: "/volagent/v1/" + key, Value: []byte(value), Mod: 1} }
	nodes := []KV{kv(shared.NodeKey("a"), "{}"), kv(shared.NodeKey("b.c"), "{}")}
	for _, tt := range []struct {
		infos   []KV
		want    int
		lacking []string
	}{
		{[]KV{kv(shared.NodeInfoKey("a"), `{"schema":3}`), kv(shared.NodeInfoKey("b.c"), `{"schema":4}`)}, 3, nil},
		{[]KV{kv(shared.NodeInfoKey("a"), `{"schema":3}`), kv(shared.NodeInfoKey("b.c"), `{"schema":2}`)}, 2, []string{"b.c"}},
		{[]KV{kv(shared.NodeInfoKey("a"), `{"schema":3}`)}, 1, []string{"b.c"}},
		{nil, 1, []string{"a", "b.c"}},
	} {
		got, lacking, err := SupportedSchema(nodes, tt.infos, 3)
		if err != nil || got != tt.want || !slices.Equal(lacking, tt.lacking) {
			t.Errorf("%d infos: %d, %v, %v; want %d, %v", len(tt.infos), got, lacking, err, tt.want, tt.lacking)
		}
	}
	if _, _, err := SupportedSchema(nodes, []KV{kv(shared.NodeInfoKey("a"), "[]")}, 3); err == nil {
		t.Error("a value of other data is accepted")
	}
}

// TestNodesOf checks which nodes belong to a host: those with its machine, also under another id than the
// name of the host.
func TestNodesOf(t *testing.T) {
	host := func(name, node, machine string) Host {
		return Host{Host: wire.Host{Name: name, Node: node}, Machine: shared.Machine{ID: machine}}
	}
	for name, tt := range map[string]struct {
		hosts []Host // the first one is asked for
		nodes map[string]string
		want  []string
	}{
		"the name":                              {[]Host{host("h1", "", "m1"), host("h2", "", "m2")}, map[string]string{"h1": "m1", "h2": "m2"}, []string{"h1"}},
		"another id":                            {[]Host{host("h1", "", "m1"), host("h2", "", "m2")}, map[string]string{"n1": "m1", "h2": "m2"}, []string{"h1", "n1"}},
		"the agent's id is another host's name": {[]Host{host("h1", "", "m1"), host("h2", "", "m2")}, map[string]string{"h2": "m1", "h1": "m2"}, []string{"h2"}},
		"an id that the operator named":         {[]Host{host("h1", "n1", ""), host("h2", "", "m2")}, map[string]string{"n1": "m1", "h1": "m3", "h2": "m2"}, []string{"n1"}},
		"an unknown machine":                    {[]Host{host("h1", "", "")}, map[string]string{"h1": "m1", "n1": "m1"}, []string{"h1"}},
		"a machine that was replaced":           {[]Host{host("h1", "", "m9")}, map[string]string{"h1": "m1"}, []string{"h1"}},
		"clones":                                {[]Host{host("h1", "", "m1"), host("h2", "", "m1")}, map[string]string{"h1": "m1", "h2": "m1", "n": "m1"}, []string{"h1", "n"}},
		"no agent":                              {[]Host{host("h1", "", "m1"), host("h2", "", "m2")}, map[string]string{"h2": "m2"}, []string{"h1"}},
	} {
		t.Run(name, func(t *testing.T) {
			hosts, nodes := map[string]Host{}, map[string]shared.Node{}
			for _, h := range tt.hosts {
				hosts[h.Name] = h
			}
			for id, m := range tt.nodes {
				nodes[id] = shared.Node{Machine: shared.Machine{ID: m}}
			}
			if got := NodesOf(tt.hosts[0], hosts, nodes); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
