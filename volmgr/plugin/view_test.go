package plugin_test

import (
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
)

// TestReadyFor checks a plugin whose services have separate parts. A call must need only the
// service that answers it.
func TestReadyFor(t *testing.T) {
	apart := plugin.View{Known: true, Apart: &plugin.Apart{
		Node:       plugin.Service{Ready: true},
		Controller: plugin.Service{Final: true, Lack: "no controller is ready"},
	}}
	whole := plugin.View{Known: true, State: "backing-off", Reason: "exit status 1"}

	for _, tt := range []struct {
		name         string
		view         plugin.View
		method       call.Method
		ready, final bool
		lacks        string
	}{
		{"the node part is ready", apart, call.NodeStage, true, false, ""},
		{"the controller part is not", apart, call.CreateVolume, false, true, "no controller is ready"},
		{"one process serves both", whole, call.NodeStage, false, false, `plugin "p" is backing-off: exit status 1`},
		{"it is barred", apart.Barred("it is another driver"), call.NodeStage, false, false, `plugin "p" is : it is another driver`},
		{"it is unknown", plugin.View{}, call.NodeStage, false, false, `plugin "p" is not configured`},
	} {
		if got := tt.view.ReadyFor(tt.method); got != tt.ready {
			t.Errorf("%s: ready %t", tt.name, got)
		}
		if got := tt.view.FinalFor(tt.method); got != tt.final {
			t.Errorf("%s: final %t", tt.name, got)
		}
		if got := tt.view.Lacks("p", tt.method); !tt.ready && got != tt.lacks {
			t.Errorf("%s: lacks %q, want %q", tt.name, got, tt.lacks)
		}
	}
}

// TestEqual checks that Equal compares the effect of definitions, and not their origin.
func TestEqual(t *testing.T) {
	def := func(change func(*plugin.Definition)) *plugin.Definition {
		d := &plugin.Definition{ID: "p", File: "/etc/p.yaml", Exec: &plugin.Exec{Command: []string{"/bin/p"}}}
		change(d)
		return d
	}
	base := def(func(*plugin.Definition) {})

	for name, tt := range map[string]struct {
		other *plugin.Definition
		equal bool
	}{
		"another file":     {def(func(d *plugin.Definition) { d.File = "/etc/q.yaml" }), true},
		"registered":       {def(func(d *plugin.Definition) { d.Registered = true }), true},
		"another argument": {def(func(d *plugin.Definition) { d.Exec.Command = []string{"/bin/p", "-v"} }), false},
		"a socket":         {def(func(d *plugin.Definition) { d.Exec, d.Socket = nil, "/run/p.sock" }), false},
		"nothing":          {nil, false},
	} {
		if got := base.Equal(tt.other); got != tt.equal {
			t.Errorf("%s: equal %t", name, got)
		}
	}
}
