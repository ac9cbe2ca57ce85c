package shared

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/volagent/volagent/volmgr/volume"
)

// encoded decodes a stored value, changes it as this release does, and returns the new stored value.
func encoded[T any](t *testing.T, stored string, change func(*T)) any {
	t.Helper()
	e, err := Decode[T](KV{Key: "k", Value: []byte(stored), Mod: 1})
	if err != nil {
		t.Fatal(err)
	}
	v := e.Value
	change(&v)
	return generic(e.Encode(v))
}

// TestUnknownFields checks that a changed value keeps the fields of a newer release, at every depth. A
// field that this release removes stays removed, with all that it contains.
func TestUnknownFields(t *testing.T) {
	for name, c := range map[string]struct {
		got  any
		want string
	}{
		"of the value": {
			encoded(t, `{"incarnation":3,"state":"ready","later":9007199254740993}`, func(n *Node) { n.Incarnation = 4 }),
			`{"incarnation":4,"state":"ready","boot":"","registration":"","later":9007199254740993}`,
		},
		"of an object in it": {
			encoded(t, `{"incarnation":3,"state":"fencing","fencing":{"by":"b","by_incarnation":1,"was":"ready","later":{"x":[1]}}}`, func(n *Node) {
				is := *n.Fencing
				is.Hook, n.Fencing = true, &is
			}),
			`{"incarnation":3,"state":"fencing","boot":"","registration":"","fencing":{"by":"b","by_incarnation":1,"was":"ready","hook":true,"later":{"x":[1]}}}`,
		},
		"of a removed object": {
			encoded(t, `{"incarnation":3,"state":"fencing","fencing":{"by":"b","by_incarnation":1,"was":"ready","later":1}}`, func(n *Node) { n.State, n.Fencing = NodeReady, nil }),
			`{"incarnation":3,"state":"ready","boot":"","registration":""}`,
		},
		"of an entry of a map": {
			encoded(t, `{"version":"2","schema":1,"plugins":{"p":{"driver":"d","later":1},"q":{"driver":"e","later":2}}}`, func(n *NodeInfo) { delete(n.Plugins, "q") }),
			`{"version":"2","schema":1,"plugins":{"p":{"driver":"d","later":1}}}`,
		},
		"of an element of a list": {
			encoded(t, `{"kind":"detach","who":"b","reason":"r","at":"2026-01-01T00:00:00Z","volumes":["x","y"],"drops":[
				{"volume":"x","kind":"detach","by":"b","at":"2026-01-01T00:00:00Z","later":1},{"volume":"y","kind":"detach","by":"b","at":"2026-01-01T00:00:00Z","later":2}]}`, func(p *Proof) {
				p.Drops = append([]Drop{{Volume: "z", Kind: ProvenPerson, By: "c"}}, p.Drops[1])
				p.Volumes = []string{"z", "y"}
			}),
			`{"kind":"detach","who":"b","reason":"r","at":"2026-01-01T00:00:00Z","volumes":["z","y"],"drops":[
				{"volume":"z","kind":"person","by":"c","at":"0001-01-01T00:00:00Z"},{"volume":"y","kind":"detach","by":"b","at":"2026-01-01T00:00:00Z","later":2}]}`,
		},
	} {
		if diff := cmp.Diff(generic([]byte(c.want)), c.got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestUnknownFieldOfVolume lets this release change the capacity of a volume whose definition has a field of a
// newer release, as a release without "takeover" does.
func TestUnknownFieldOfVolume(t *testing.T) {
	d, ok := encoded(t, `{"volume":{"id":"db","takeover_later":"never"},"attach":true}`, func(d *Definition) { d.Volume.Capacity = 7 }).(map[string]any)
	v, _ := d["volume"].(map[string]any)
	if !ok || v["takeover_later"] != "never" || v["id"] != "db" || v["capacity"] == nil || d["attach"] != true {
		t.Errorf("the definition becomes %v", d)
	}
}

// TestDecodeForeign checks that data of other programs is refused, and that a value of this release is not
// taken for one of a newer release.
func TestDecodeForeign(t *testing.T) {
	for _, foreign := range []string{``, `x`, `7`, `[]`, `{"volume":7}`, `{} {}`} {
		if e, err := Decode[Definition](KV{Key: "k", Value: []byte(foreign), Mod: 1}); err == nil {
			t.Errorf("%q was decoded to %+v", foreign, e.Value)
		}
	}
	own := Entry[Definition]{}.Encode(Definition{Volume: volume.Volume{ID: "db", Takeover: volume.TakeoverNever}})
	e, err := Decode[Definition](KV{Key: "k", Value: own, Mod: 1})
	if err != nil || e.newer || e.Value.Volume.Takeover != volume.TakeoverNever {
		t.Errorf("got %+v, %v", e, err)
	}
}
