package supervisor

import (
	"errors"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/supervisor/runner"
)

// TestNamed checks that the agent refuses a driver whose name CSI does not allow. If the agent
// already has volumes of the plugin, the agent only warns.
func TestNamed(t *testing.T) {
	for _, tt := range []struct {
		driver  string
		volumes bool
		refused bool
		warned  bool
	}{
		{"ebs.csi.aws.com", false, false, false},
		{"ebs.csi.aws.com", true, false, false},
		{"a\u202eb", false, true, false},
		{"a_b", true, false, true},
		{strings.Repeat("x", 64), false, true, false},
		{strings.Repeat("x", 64), true, false, true},
	} {
		e := newEnv(Options{HasVolumes: func(id string) bool { return id == "p" && tt.volumes }})
		w := &checker{supervised: &supervised{env: e, id: "p"}}
		err := w.named(tt.driver)
		if errors.Is(err, runner.ErrRefused) != tt.refused || (err != nil) != tt.refused {
			t.Errorf("%q, volumes %t: %v", tt.driver, tt.volumes, err)
		}
		if (w.misnamed != "") != tt.warned {
			t.Errorf("%q, volumes %t: warning %q", tt.driver, tt.volumes, w.misnamed)
		}
	}
}
