package main_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/csitest"
)

// Each test in this file uses a plugin with a permanent property of a real plugin.

// unmount unmounts a path that must be mounted. It unmounts lazily, because the agent may have the
// path open for a check.
func unmount(t *testing.T, path string) {
	t.Helper()
	if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
		t.Fatalf("cannot unmount %s: %v", path, err)
	}
}

// frozen stops the agent while do runs, so that the agent sees either all effects of do or none.
// Otherwise the agent could see a part of them when it checks the volume after its last step.
func (h *host) frozen(do func()) {
	h.t.Helper()
	agent := h.cmd.Process
	h.must(agent.Signal(syscall.SIGSTOP))
	defer func() { h.must(agent.Signal(syscall.SIGCONT)) }()
	h.await("the agent to stand still", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", agent.Pid))
		h.must(err)
		return strings.HasPrefix(string(stat[strings.LastIndexByte(string(stat), ')'):]), ") T")
	})
	do()
}

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
			h := newRecorded(t, "10s", func(c *csitest.Config) { tt.tune(t, c) })
			h.register("data", "single-node-writer")
			h.lives()
			for _, args := range [][]string{{"volume", "list"}, {"volume", "status", "data"}, {"plugin", "status", "rec"}, {"node", "status"}} {
				h.volctl(args...)
			}
			j, err := csitest.LoadJournal(h.cfg.JournalPath())
			h.must(err)
			if j.Starts != 1 {
				t.Errorf("the plugin was started %d times", j.Starts)
			}
			if needless := j.Calls.Only(csitest.ListVolumes, csitest.GetCapacity); len(needless) > 0 {
				t.Errorf("nobody needs these calls:\n%s", needless)
			}
		})
	}
}

// TestNoNodeService checks a plugin without a node service. The agent refuses a claim with the
// reason, and sends no useless call to the controller.
func TestNoNodeService(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", func(c *csitest.Config) { c.NoNode = true })
	h.register("data", "single-node-writer")
	mark := h.mark()
	r := h.try("volume", "claim", "data", "--alloc", "a", "--timeout", "20s")
	if r.code != 4 || !strings.Contains(r.err, "node service") {
		t.Errorf("exit %d, %s", r.code, r.err)
	}
	h.over("data")
	h.expect(mark)
}

// TestSecretsEverywhere checks a plugin that requires the volume's secrets in every call that has a
// field for secrets.
func TestSecretsEverywhere(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", func(c *csitest.Config) { c.WantSecrets = map[string]string{"user": "u", "key": "k"} })
	for _, name := range []string{"u", "k"} {
		h.must(os.WriteFile(filepath.Join(h.dir, name), []byte(name), 0o600))
	}
	h.registerWith("external_id: x\nsecrets:\n  user: {file: " + h.dir + "/u}\n  key: {file: " + h.dir + "/k}\n")
	h.lives() // the plugin reports a call without secrets as a violation
}

// TestOldSocket checks a plugin that cannot replace its socket file. After a kill the file remains
// and refuses connections. The agent must remove the file before it restarts the plugin.
func TestOldSocket(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", func(c *csitest.Config) { c.OldSocket = true })
	h.register("data", "single-node-writer")
	path := h.volctl("volume", "claim", "data", "--alloc", "a")
	mounts, mark := h.mounts(), h.mark()
	for range 2 {
		pid := h.pluginPID("rec")
		h.must(syscall.Kill(pid, syscall.SIGKILL))
		h.await("another process", func() bool { now := h.pluginPID("rec"); return now != 0 && now != pid })
		h.volctl("wait", "--plugin", "rec", "--timeout", "20s")
	}
	h.expect(mark)
	if got := h.mounts(); got != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	h.must(os.WriteFile(filepath.Join(path, "file"), nil, 0o644))
	h.volctl("volume", "detach", "data")
	h.over("data")
}

// TestFuseDaemons checks FUSE daemons that serve mounts and belong to the plugin's process group.
// The agent never signals the whole group, so the daemons survive a restart of the plugin and a
// stop of the agent.
func TestFuseDaemons(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	h.fault(csitest.Fault{Method: st, Twist: csitest.Served})
	path := h.volctl("volume", "claim", "data", "--alloc", "a")
	mounts, mark := h.mounts(), h.mark()
	pid := h.pluginPID("rec")
	alive := func(what string) {
		t.Helper()
		h.await("another plugin, "+what, func() bool { now := h.pluginPID("rec"); return now != 0 && now != pid })
		pid = h.pluginPID("rec")
		h.volctl("wait", "--plugin", "rec", "--timeout", "20s")
		if _, err := os.ReadDir(path); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	h.must(syscall.Kill(pid, syscall.SIGKILL))
	alive("after a kill")
	h.must(h.signal(syscall.SIGTERM))
	if _, err := os.ReadDir(path); err != nil {
		t.Errorf("without an agent: %v", err)
	}
	h.start("rec")
	h.expect(mark)
	if got := h.mounts(); got != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	h.volctl("volume", "detach", "data")
	h.over("data")
}

// TestSharedPropagation checks a plugin that needs shared mount propagation on the parent of the
// staging path. With shared propagation the volume can be staged repeatedly. Otherwise the agent
// logs the problem and its fix, and the claim fails with the plugin's error.
func TestSharedPropagation(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{true, false} {
		t.Run(fmt.Sprint(shared), func(t *testing.T) {
			t.Parallel()
			h := newRecorded(t, "2s", func(c *csitest.Config) {
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
			h.register("data", "single-node-writer")
			log, err := os.ReadFile(h.log.Name())
			h.must(err)
			if said := strings.Contains(string(log), "make-shared "+h.dir+"/d/csi"); said == shared {
				t.Errorf("the agent said it: %v", said)
			}
			if shared {
				h.lives()
				return
			}
			r := h.try("volume", "claim", "data", "--alloc", "a", "--timeout", "1s")
			if r.code != 5 || !strings.Contains(r.err, "is not in a shared mount") {
				t.Errorf("exit %d, %s", r.code, r.err)
			}
			h.must(h.cfg.Faults().Clear()) // unstage needs shared propagation too
			h.over("data")
		})
	}
}
