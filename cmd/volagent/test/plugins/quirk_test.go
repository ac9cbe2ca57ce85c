package plugins_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// Each test in this file uses a plugin with a permanent peculiarity that a real plugin has.

// TestQuirks claims, uses and detaches a volume with plugins of many kinds.
func TestQuirks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		tune func(*testing.T, *csitest.Config)
	}{
		{"Probe says nothing of being ready, which means that it is", func(t *testing.T, c *csitest.Config) {
			early(t, c, csitest.Fault{Method: csitest.Probe, Effect: csitest.EffectNone, Times: -1})
		}},
		{"it takes seconds to answer at first", func(t *testing.T, c *csitest.Config) {
			early(t, c, csitest.Fault{Method: csitest.Probe, Delay: 2 * time.Second})
		}},
		{"it has capabilities that nobody has heard of", func(_ *testing.T, c *csitest.Config) { c.UnknownCapabilities = true }},
		{"it has no controller service", func(_ *testing.T, c *csitest.Config) {
			c.NoController, c.Attach, c.CreateDelete = true, false, false
		}},
		{"it does not stage", func(_ *testing.T, c *csitest.Config) { c.Stage = false }},
		{"it neither attaches nor stages", func(_ *testing.T, c *csitest.Config) { c.Attach, c.Stage = false, false }},
		{"it knows only the old access modes", func(_ *testing.T, c *csitest.Config) { c.MultiWriter = false }},
		{"to list volumes, or to ask for the capacity left, kills it", func(t *testing.T, c *csitest.Config) {
			c.Lists = true
			early(t, c, csitest.Fault{Method: csitest.ListVolumes, Crash: csitest.BeforeEffect, Times: -1},
				csitest.Fault{Method: csitest.GetCapacity, Crash: csitest.BeforeEffect, Times: -1})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := harness.StartRecorded(t, "10s", func(c *csitest.Config) { tt.tune(t, c) })
			h.Register("data", "single-node-writer")
			h.UseTwice()
			for _, args := range [][]string{{"volume", "list"}, {"volume", "status", "data"}, {"plugin", "status", "rec"}, {"node", "status"}} {
				h.Volctl(args...)
			}
			j, err := csitest.LoadJournal(h.Config.JournalPath())
			h.Must(err)
			if j.Starts != 1 {
				t.Errorf("the plugin was started %d times", j.Starts)
			}
			if needless := j.Calls.Only(csitest.ListVolumes, csitest.GetCapacity); len(needless) > 0 {
				t.Errorf("nobody needs these calls:\n%s", needless)
			}
		})
	}
}

// TestNoNodeService checks a plugin without a node service. The agent must refuse a claim with the
// reason, and must not call the controller.
func TestNoNodeService(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", func(c *csitest.Config) { c.NoNode = true })
	h.Register("data", "single-node-writer")
	mark := h.Mark()
	r := h.Try("volume", "claim", "data", "--alloc", "a", "--timeout", "20s")
	if r.Code != 4 || !strings.Contains(r.Err, "node service") {
		t.Errorf("exit %d, %s", r.Code, r.Err)
	}
	h.ExpectClean("data")
	h.ExpectCalls(mark)
}

// TestSecretsEverywhere checks a plugin that requires the volume's secrets in every call that has a
// field for secrets.
func TestSecretsEverywhere(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", func(c *csitest.Config) { c.WantSecrets = map[string]string{"user": "u", "key": "k"} })
	for _, name := range []string{"u", "k"} {
		h.Must(os.WriteFile(filepath.Join(h.Dir, name), []byte(name), 0o600))
	}
	h.RegisterWith("external_id: x\nsecrets:\n  user: {file: " + h.Dir + "/u}\n  key: {file: " + h.Dir + "/k}\n")
	h.UseTwice() // the plugin records a violation for each call without secrets
}

// TestOldSocket checks a plugin that fails to start if its socket file already exists. After a
// kill, the old socket file remains and refuses connections. The agent must remove the file before
// it restarts the plugin.
func TestOldSocket(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", func(c *csitest.Config) { c.OldSocket = true })
	h.Register("data", "single-node-writer")
	path := h.Volctl("volume", "claim", "data", "--alloc", "a")
	mounts, mark := h.Mounts(), h.Mark()
	for range 2 {
		pid := h.PluginPID("rec")
		h.Must(syscall.Kill(pid, syscall.SIGKILL))
		h.Await("another process", func() bool { now := h.PluginPID("rec"); return now != 0 && now != pid })
		h.Volctl("wait", "--plugin", "rec", "--timeout", "20s")
	}
	h.ExpectCalls(mark)
	if got := h.Mounts(); got != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	h.Must(os.WriteFile(filepath.Join(path, "file"), nil, 0o644))
	h.Volctl("volume", "detach", "data")
	h.ExpectClean("data")
}

// TestFuseDaemons checks FUSE daemons that serve mounts and belong to the plugin's process group.
// The agent must never signal the whole process group, so that the daemons survive a restart of the
// plugin and a stop of the agent.
func TestFuseDaemons(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	h.AddFaults(csitest.Fault{Method: st, Twist: csitest.Served})
	path := h.Volctl("volume", "claim", "data", "--alloc", "a")
	mounts, mark := h.Mounts(), h.Mark()
	pid := h.PluginPID("rec")
	alive := func(what string) {
		t.Helper()
		h.Await("another plugin, "+what, func() bool { now := h.PluginPID("rec"); return now != 0 && now != pid })
		pid = h.PluginPID("rec")
		h.Volctl("wait", "--plugin", "rec", "--timeout", "20s")
		if _, err := os.ReadDir(path); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	h.Must(syscall.Kill(pid, syscall.SIGKILL))
	alive("after a kill")
	h.Must(h.Signal(syscall.SIGTERM))
	if _, err := os.ReadDir(path); err != nil {
		t.Errorf("without an agent: %v", err)
	}
	h.Start("rec")
	h.ExpectCalls(mark)
	if got := h.Mounts(); got != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	h.Volctl("volume", "detach", "data")
	h.ExpectClean("data")
}

// TestSharedPropagation checks a plugin that needs shared mount propagation on the parent of the
// staging path. With shared propagation, the volume can be staged repeatedly. Without it, the agent
// logs the problem and its fix, and the claim fails with the plugin's error.
func TestSharedPropagation(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{true, false} {
		t.Run(fmt.Sprint(shared), func(t *testing.T) {
			t.Parallel()
			h := harness.StartRecorded(t, "2s", func(c *csitest.Config) {
				early(t, c, csitest.Fault{Twist: csitest.Sharing, Times: -1})
				if !shared {
					return
				}
				dir := filepath.Dir(c.Base)
				if err := errors.Join(syscall.Mount(dir, dir, "", syscall.MS_BIND, ""), syscall.Mount("", dir, "", syscall.MS_SHARED, "")); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
						t.Error(err)
					}
				})
			})
			h.Register("data", "single-node-writer")
			log, err := os.ReadFile(h.Log.Name())
			h.Must(err)
			if said := strings.Contains(string(log), "make-shared "+h.Dir+"/d/csi"); said == shared {
				t.Errorf("the agent said it: %v", said)
			}
			if shared {
				h.UseTwice()
				return
			}
			r := h.Try("volume", "claim", "data", "--alloc", "a", "--timeout", "1s")
			if r.Code != 5 || !strings.Contains(r.Err, "is not in a shared mount") {
				t.Errorf("exit %d, %s", r.Code, r.Err)
			}
			h.Must(h.Config.Faults().Clear()) // without the fault, NodeUnstageVolume succeeds
			h.ExpectClean("data")
		})
	}
}
