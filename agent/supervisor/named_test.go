package supervisor

import (
	"errors"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/supervisor/runner"
)

// TestNamed checks a driver whose name CSI does not allow. The agent must refuse the plugin. If it
// already has volumes of the plugin, it must only warn.
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
