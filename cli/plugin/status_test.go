package plugin

import (
	"testing"

	"github.com/volagent/volagent/agent/api"
)

// TestWantedOfRegistered checks the label of pending settings. A registered plugin has no file, so
// the label must not name one.
func TestWantedOfRegistered(t *testing.T) {
	for registered, want := range map[bool]string{false: "  In file  max_in_flight: 4", true: "  Wanted   max_in_flight: 4"} {
		lines := partFields(&api.PluginPart{Registered: registered, Wanted: map[string]string{"max_in_flight": "4"}}, "")
		if got := lines[len(lines)-1].Left; got != want {
			t.Errorf("registered %t: %q, want %q", registered, got, want)
		}
	}
}
