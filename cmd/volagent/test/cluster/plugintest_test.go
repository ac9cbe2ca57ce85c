package cluster_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

// TestPluginTestFence checks that "volctl plugin test --fence" notices whether a detach cuts a host off
// that writes to the volume. A driver passes if its detach cuts the host off, and fails if it answers OK
// although the host can still write. The test of a plugin leaves nothing in either case.
func TestPluginTestFence(t *testing.T) {
	s := startSAN(t)
	h := harness.NewHost(t)
	h.MoreArgs = append(h.MoreArgs, "--node-id", "h1")
	addDriver(h, s, "h1", san.Config{Attach: true, PublishedNodes: true, Provision: true, Stage: true})
	h.Start("san")
	test := func() (fence api.PluginCheck, code int) {
		r := h.Try("plugin", "test", "san", "--fence", "-o", "json")
		var out struct{ Checks []api.PluginCheck }
		h.Must(json.Unmarshal([]byte(r.Out), &out))
		for _, id := range []string{"detach", "delete", "leftovers"} {
			i := slices.IndexFunc(out.Checks, func(c api.PluginCheck) bool { return c.Check == id })
			if i < 0 || out.Checks[i].Result != api.CheckOK {
				t.Errorf("%s: %s", id, r.Out)
			}
		}
		h.ExpectNoMounts()
		h.Await("the end of all disks and mounts of the test", func() bool { return len(s.Disks()) == 0 && len(s.Sessions()) == 0 })
		return out.Checks[slices.IndexFunc(out.Checks, func(c api.PluginCheck) bool { return c.Check == "fence" })], r.Code
	}

	if c, code := test(); c.Result != api.CheckOK || code != 0 || !strings.Contains(c.Said, "Input/output error), and the plugin no longer lists this host") {
		t.Errorf("a detach that cuts the host off: exit %d, %+v", code, c)
	}

	s.LieAboutNextDetach("h1")
	if c, code := test(); c.Result != api.CheckBroken || code != 1 || !strings.Contains(c.Said, "this host can still write to the volume") {
		t.Errorf("a detach without an effect: exit %d, %+v", code, c)
	}
}
