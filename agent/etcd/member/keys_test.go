package member

import (
	"slices"
	"testing"

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
