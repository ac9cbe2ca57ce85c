package plugin

import (
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/output"
)

// TestWantedOfRegistered checks the label of settings that have not taken effect yet. For a plugin
// that was registered at run time, the label must not mention a file.
func TestWantedOfRegistered(t *testing.T) {
	for registered, want := range map[bool]string{false: "In file", true: "Wanted"} {
		lines := partFields(&api.PluginPart{Registered: registered, Wanted: map[string]string{"max_in_flight": "4"}})
		if got, want := lines[len(lines)-1], output.Named(want, "max_in_flight: 4"); got != want {
			t.Errorf("registered %t: %+v, want %+v", registered, got, want)
		}
	}
}
