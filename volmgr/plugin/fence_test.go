package plugin_test

import (
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/plugin"
)

// TestStricter checks which fence counts if two parts of a plugin name one each.
func TestStricter(t *testing.T) {
	ascending := []plugin.Fence{plugin.FenceNone, plugin.FenceDetach, plugin.FenceHook, plugin.FenceDetachWhenOff}
	for i, a := range ascending {
		for j, b := range ascending {
			if got, want := a.Stricter(b), ascending[max(i, j)]; got != want {
				t.Errorf("of %q and %q: %q, want %q", a, b, got, want)
			}
		}
	}
}

// TestFenceLack checks for which plugins the agent warns that a detach cuts no host off.
func TestFenceLack(t *testing.T) {
	known := plugin.Info{Driver: "d", HasController: true}
	attaches := known
	attaches.Caps.Attach = true
	for _, tt := range []struct {
		name  string
		view  plugin.View
		warns bool
	}{
		{"a detach without ControllerPublish", plugin.View{Fence: plugin.FenceDetach, Info: known}, true},
		{"a detach of a host that is off, without ControllerPublish", plugin.View{Fence: plugin.FenceDetachWhenOff, Info: known}, true},
		{"a detach with ControllerPublish", plugin.View{Fence: plugin.FenceDetach, Info: attaches}, false},
		{"a hook", plugin.View{Fence: plugin.FenceHook, Info: known}, false},
		{"no fence", plugin.View{Info: known}, false},
		{"a plugin that has not answered", plugin.View{Fence: plugin.FenceDetach}, false},
		{"a controller on another host", plugin.View{Fence: plugin.FenceDetach, Info: plugin.Info{Driver: "d", HasNode: true}}, false},
		{"a controller that has not answered", plugin.View{
			Fence: plugin.FenceDetach, Info: known, Apart: &plugin.Apart{Controller: plugin.Service{Unasked: true}},
		}, false},
	} {
		got := tt.view.FenceLack()
		if (got != "") != tt.warns || tt.warns && !strings.Contains(got, "fence: "+string(tt.view.Fence)) {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
}
