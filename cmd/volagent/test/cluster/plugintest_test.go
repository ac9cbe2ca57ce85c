package cluster_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

// TestPluginTestFence checks that "volctl plugin test --fence" notices whether a detach cuts a host off
// that writes to the volume. A driver passes if its detach cuts the host off, and fails if it answers OK
// although the host can still write. The test of a plugin leaves nothing in either case.
func TestPluginTestFence(t *testing.T) {
	for _, tt := range []struct {
		name   string
		lies   bool
		result string
		code   int
		said   string
	}{
		{"cuts off", false, api.CheckOK, 0, "Input/output error), and the plugin no longer lists this host"},
		{"lies", true, api.CheckBroken, 1, "this host can still write to the volume"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // a test of a plugin mostly waits
			s := lab.StartSAN(t)
			h := harness.NewHost(t)
			h.MoreArgs = append(h.MoreArgs, "--node-id", "h1")
			addDriver(h, s, "h1", san.Config{Attach: true, PublishedNodes: true, Provision: true, Stage: true})
			h.Start("san")
			if tt.lies {
				s.LieAboutNextDetach("h1")
			}

			checks, code := testPluginFence(h)
			if c := checks["fence"]; c.Result != tt.result || code != tt.code || !strings.Contains(c.Said, tt.said) {
				t.Errorf("exit %d, %+v", code, c)
			}
			for _, id := range []string{"detach", "delete", "leftovers"} {
				if checks[id].Result != api.CheckOK {
					t.Errorf("%s: %+v", id, checks[id])
				}
			}
			h.ExpectNoMounts()
			h.Await("the end of all disks and mounts of the test", func() bool { return len(s.Disks()) == 0 && len(s.Sessions()) == 0 })
		})
	}
}

// testPluginFence runs "volctl plugin test --fence", and returns the checks by their names.
func testPluginFence(h *harness.Host) (checks map[string]api.PluginCheck, code int) {
	h.T.Helper()
	r := h.Try("plugin", "test", "san", "--fence", "-o", "json")
	var out struct{ Checks []api.PluginCheck }
	h.Must(json.Unmarshal([]byte(r.Out), &out))
	checks = map[string]api.PluginCheck{}
	for _, c := range out.Checks {
		checks[c.Check] = c
	}
	return checks, r.Code
}
