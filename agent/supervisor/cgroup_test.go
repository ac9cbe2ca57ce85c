package supervisor_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/agent/systemd"
)

// ownCgroup returns the cgroup of a process in the unified hierarchy.
func ownCgroup(t *testing.T, pid string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if own, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return own
		}
	}
	return ""
}

// TestOwnCgroup checks the cgroups of plugins on a host without systemd. Each command must have its
// own cgroup beside the cgroup of the agent. The agent must remove the cgroup when the command
// ends. If the command ended while no agent ran, the next agent must remove the cgroup at its
// start.
func TestOwnCgroup(t *testing.T) {
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.procs"); err != nil {
		root += "/unified"
	}
	beside := filepath.Join(root, filepath.Dir(ownCgroup(t, "self")))
	left := filepath.Join(beside, "volagent-plugin-fake-0123456789ab")
	if err := os.Mkdir(left, 0o755); err != nil || systemd.Booted() {
		t.Skipf("no cgroup can be made here: %v", errors.Join(err, os.Remove(left)))
	}
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.start()
	own := ownCgroup(t, fmt.Sprint(b.await("fake", supervisor.Ready).PID))
	if !strings.HasPrefix(filepath.Base(own), "volagent-plugin-fake-") {
		t.Fatalf("the plugin's cgroup is %q", own)
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what an earlier plugin left: %v", err)
	}
	if err := b.sup.Stop("fake", false); err != nil {
		t.Fatal(err)
	}
	b.await("fake", supervisor.Stopped)
	b.awaitThat("fake", "its process gone", func(st supervisor.Status) bool { return strings.HasPrefix(st.Reason, "on request") })
	if _, err := os.Stat(filepath.Join(beside, filepath.Base(own))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the cgroup of the plugin that ended: %v", err)
	}
}
