package state_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// TestOtherDataDir starts the agent with an empty data dir while volumes are mounted below an
// earlier data dir. The agent must report this in the status, in doctor and in inspect. It must not
// start a plugin or create a volume with the plugins of the earlier data dir. It uses the new data
// dir as soon as the earlier one has no mounted volumes and no running plugins.
func TestOtherDataDir(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t)
	h.Start("local")
	h.Volctl("volume", "create", "a", "--plugin", "local")
	h.Volctl("volume", "claim", "a", "--alloc", "x")
	mounts, plugins := h.Mounts(), h.PluginPIDs()
	h.Must(h.Signal(syscall.SIGTERM))

	other := filepath.Join(h.Dir, "e")
	h.MoreArgs = []string{"--data-dir", other}
	h.Start()
	for _, args := range [][]string{{"node", "status"}, {"node", "status", "-o", "json"}} {
		h.ExpectOutput("agent with the data dir "+h.Dir+"/d", args...)
	}
	if ids := harness.Doctor(h).IDs(); !slices.Contains(ids, "agent-halted:agent") {
		t.Errorf("doctor finds %q", ids)
	}
	h.ExpectRefusal(4, "agent with the data dir", "volume", "create", "b", "--plugin", "local")
	if out, _ := harness.Inspect(h, "--in-use"); !strings.Contains(out, "volagent inspect --data-dir "+h.Dir+"/d") {
		t.Errorf("inspect --in-use says %q", out)
	}
	if now := h.PluginPIDs(); !slices.Equal(now, plugins) {
		t.Errorf("plugins are %v and were %v", now, plugins)
	}
	if made, _ := filepath.Glob(filepath.Join(h.Dir, "d", "plugins", "local", "state", "*", "b*")); len(made) > 0 {
		t.Errorf("made in the other data dir: %q", made)
	}
	h.Must(h.Signal(syscall.SIGTERM))

	h.MoreArgs = nil
	h.Start("local")
	if now := h.Mounts(); now != mounts {
		t.Errorf("mounts were\n%s and are\n%s", mounts, now)
	}
	h.Volctl("volume", "detach", "a", "x")
	h.Volctl("plugin", "stop", "local")
	h.Must(h.Signal(syscall.SIGTERM))
	h.MoreArgs = []string{"--data-dir", other}
	h.Start("local")
	h.Volctl("volume", "create", "b", "--plugin", "local")
	if _, err := os.Stat(filepath.Join(other, "plugins", "local")); err != nil {
		t.Error(err)
	}
}

// TestOtherDataDirUnnoted removes the file that records the data dir. An agent with another data
// dir must still recognize the running plugin, by the path of the plugin's log file.
func TestOtherDataDirUnnoted(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t)
	h.Start("local")
	plugins := h.PluginPIDs()
	h.Must(h.Signal(syscall.SIGTERM))
	h.Must(os.Remove(filepath.Join(h.Dir, "run", "data_dir")))
	h.MoreArgs = []string{"--data-dir", filepath.Join(h.Dir, "e")}
	h.Start()
	h.ExpectOutput("the plugin at "+h.Dir+"/run/plugins/local/csi.sock", "node", "status")
	if now := h.PluginPIDs(); !slices.Equal(now, plugins) {
		t.Errorf("plugins are %v and were %v", now, plugins)
	}
}
