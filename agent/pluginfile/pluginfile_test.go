package pluginfile

import (
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

func TestExpand(t *testing.T) {
	value := func(name string) string { return "<" + name + ">" }
	for in, want := range map[string]string{
		"":                            "",
		"--endpoint=${CSI_ENDPOINT}":  "--endpoint=<CSI_ENDPOINT>",
		"${NODE_ID}${PLUGIN_ID}/x":    "<NODE_ID><PLUGIN_ID>/x",
		"$HOME $ {NODE_ID} }":         "$HOME $ {NODE_ID} }",
		"$${NODE_ID} and ${NODE_ID}":  "${NODE_ID} and <NODE_ID>",
		"${STATE_DIR}:${MOUNT_ROOT}$": "<STATE_DIR>:<MOUNT_ROOT>$",
	} {
		if got, err := Expand(in, value); got != want || err != nil {
			t.Errorf("%q: got %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"${", "x${NODE_ID", "${}", "${node_id}", "${PATH}"} {
		if got, err := Expand(in, value); err == nil {
			t.Errorf("%q: got %q", in, got)
		}
	}
}

func TestParse(t *testing.T) {
	id, got, err := Parse("f.yaml", []byte(`
id: full
type: node
instance: b
exec:
  command: [/bin/x, "--e=${CSI_ENDPOINT}", 7]
  env: {A: "${NODE_ID}", PORT: 8080, EMPTY: , S: {credential: c}}
health: {interval: 1s, timeout: 2s, start_timeout: 3s}
timeouts: {node: 4s, controller: 5s}
max_in_flight: 6
unmasked_secrets: [prefix]
on_change: restart
`))
	want := &plugin.Definition{
		ID: "full", Type: "node", Instance: "b", File: "f.yaml",
		Exec: &plugin.Exec{Command: []string{"/bin/x", "--e=${CSI_ENDPOINT}", "7"}, Env: map[string]plugin.EnvValue{
			"A": {Value: "${NODE_ID}"}, "PORT": {Value: "8080"}, "EMPTY": {}, "S": {Secret: &call.SecretRef{Credential: "c"}}}},
		ProbeInterval: time.Second, ProbeTimeout: 2 * time.Second, StartTimeout: 3 * time.Second,
		NodeTimeout: 4 * time.Second, ControllerTimeout: 5 * time.Second, MaxInFlight: 6, OnChange: "restart",
		UnmaskedSecrets: []string{"prefix"},
	}
	if err != nil || id != "full" || !got.Equal(want) || got.File != want.File {
		t.Errorf("got %+v, %v", got, err)
	}
	// Parse must set omitted keys to their default values.
	_, got, err = Parse("f.yaml", []byte("id: x\ntype: \"\"\nsocket: unix:///run//x.sock\n"))
	want = &plugin.Definition{ID: "x", Socket: "/run/x.sock", ProbeInterval: 30 * time.Second, ProbeTimeout: 5 * time.Second,
		StartTimeout: 30 * time.Second, NodeTimeout: 2 * time.Minute, ControllerTimeout: time.Minute, MaxInFlight: 32, OnChange: "pending"}
	if err != nil || !got.Equal(want) {
		t.Errorf("got %+v, %v", got, err)
	}
	// Equal must detect each difference between two definitions.
	for name, edit := range map[string]func(*plugin.Definition){
		"interval": func(d *plugin.Definition) { d.ProbeInterval++ },
		"exec":     func(d *plugin.Definition) { d.Exec = &plugin.Exec{} },
		"unmasked": func(d *plugin.Definition) { d.UnmaskedSecrets = []string{"x"} },
	} {
		other := *want
		edit(&other)
		if want.Equal(&other) || other.Equal(want) {
			t.Errorf("%s makes no difference", name)
		}
	}
}

// TestFence checks the values of the key fence, and which plugins can have one.
func TestFence(t *testing.T) {
	for text, want := range map[string]plugin.Fence{
		"":                       plugin.FenceNone,
		"fence: none":            plugin.FenceNone,
		"fence: detach":          plugin.FenceDetach,
		"fence: detach-when-off": plugin.FenceDetachWhenOff,
		"fence: hook":            plugin.FenceHook,
	} {
		_, def, err := Parse("f.yaml", []byte("id: x\nsocket: /x\nscope: shared\n"+text))
		if err != nil || def.Fence != want || Settings(def)["fence"] != string(want) {
			t.Errorf("%q: %+v, %v", text, def, err)
		}
	}

	for text, words := range map[string]string{
		"socket: /x\nfence: reboot":              `f.yaml:3: "fence" is "reboot"; it can be none, detach, detach-when-off, hook`,
		"socket: /x\nfence: [detach]":            `f.yaml:3: "fence" is not a single value`,
		"socket: /x\nscope: host\nfence: detach": "cannot have fence: detach, because no other host takes over storage that belongs to this host",
		"builtin: local\nfence: hook":            "cannot have fence: hook",
	} {
		if _, _, err := Parse("f.yaml", []byte("id: x\n"+text)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("id: x\nsocket: /s\n")
	f.Add("id: x\nexec: {command: [a, &b c, *b], env: {A: {file: x}}}\n")
	f.Add("<<: {id: x}\nbuiltin: local")
	f.Add("id: x\nenabled: false\nvalues: {A: , B: b}\nexec: {command: [a, '${A}', '$${B}']}\n")
	f.Fuzz(func(t *testing.T, content string) {
		id, def, err := Parse("f.yaml", []byte(content))
		if (def == nil) == (err == nil) {
			t.Fatalf("%q: %v, %v", content, def, err)
		}
		if def != nil && (id != def.ID || volume.CheckPluginID(id) != nil || !def.Equal(def)) {
			t.Fatalf("%q: id %q of %+v", content, id, def)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "f.yaml:") {
			t.Fatalf("%q: %v names no file", content, err)
		}
	})
}
