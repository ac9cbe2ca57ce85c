package main_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestOtherDataDir starts the agent with an empty data dir while volumes are mounted below the
// first one. The agent reports this in status, doctor and inspect. It starts no plugin, and creates
// no volume through the plugins of the first data dir. The agent uses the new data dir once the
// first one has no mounted volumes and no running plugins.
func TestOtherDataDir(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start("local")
	h.volctl("volume", "create", "a", "--plugin", "local")
	h.volctl("volume", "claim", "a", "--alloc", "x")
	mounts, plugins := h.mounts(), h.started()
	h.must(h.signal(syscall.SIGTERM))

	other := filepath.Join(h.dir, "e")
	h.more = []string{"--data-dir", other}
	h.start()
	for _, args := range [][]string{{"node", "status"}, {"node", "status", "-o", "json"}} {
		h.says("agent with the data dir "+h.dir+"/d", args...)
	}
	if ids := h.doctor().ids(); !slices.Contains(ids, "agent-halted:agent") {
		t.Errorf("doctor finds %q", ids)
	}
	h.refused(4, "agent with the data dir", "volume", "create", "b", "--plugin", "local")
	if out, _ := h.inspect("--in-use"); !strings.Contains(out, "volagent inspect --data-dir "+h.dir+"/d") {
		t.Errorf("inspect --in-use says %q", out)
	}
	if now := h.started(); !slices.Equal(now, plugins) {
		t.Errorf("plugins are %v and were %v", now, plugins)
	}
	if made, _ := filepath.Glob(filepath.Join(h.dir, "d", "plugins", "local", "state", "*", "b*")); len(made) > 0 {
		t.Errorf("made in the other data dir: %q", made)
	}
	h.must(h.signal(syscall.SIGTERM))

	h.more = nil
	h.start("local")
	if now := h.mounts(); now != mounts {
		t.Errorf("mounts were\n%s and are\n%s", mounts, now)
	}
	h.volctl("volume", "detach", "a", "x")
	h.volctl("plugin", "stop", "local")
	h.must(h.signal(syscall.SIGTERM))
	h.more = []string{"--data-dir", other}
	h.start("local")
	h.volctl("volume", "create", "b", "--plugin", "local")
	if _, err := os.Stat(filepath.Join(other, "plugins", "local")); err != nil {
		t.Error(err)
	}
}

// TestOtherDataDirUnnoted removes the file in the runtime dir that names the data dir. The agent
// with the new data dir recognizes the running plugin by the plugin's log file.
func TestOtherDataDirUnnoted(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start("local")
	plugins := h.started()
	h.must(h.signal(syscall.SIGTERM))
	h.must(os.Remove(filepath.Join(h.dir, "run", "data_dir")))
	h.more = []string{"--data-dir", filepath.Join(h.dir, "e")}
	h.start()
	h.says("the plugin at "+h.dir+"/run/plugins/local/csi.sock", "node", "status")
	if now := h.started(); !slices.Equal(now, plugins) {
		t.Errorf("plugins are %v and were %v", now, plugins)
	}
}
