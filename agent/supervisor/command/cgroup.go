package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/volmgr/proc"
)

// Without systemd, each command gets its own cgroup beside the cgroup of the agent. So if the
// agent's cgroup is killed, the plugin keeps running. The agent only tries this: the host may have
// no unified hierarchy, or the agent may lack write permission there.

// cgroupRoots lists the paths at which the unified hierarchy may be mounted, either alone or beside
// other hierarchies.
var cgroupRoots = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

// SweepGroups removes the cgroups of all plugins that have ended while no agent ran.
func SweepGroups() { sweepGroups(prefix + "*") }

// sweepGroups removes the cgroups that match a pattern and contain no process.
func sweepGroups(pattern string) {
	beside, err := groupDir()
	if err != nil || systemd.Booted() {
		return
	}

	old, err := filepath.Glob(filepath.Join(beside, pattern))
	if err != nil {
		return
	}

	for _, dir := range old {
		removeGroup(dir)
	}
}

// openGroup creates and opens the cgroup for one instance.
func openGroup(slot, nonce string) (*os.File, error) {
	if systemd.Booted() {
		return nil, errors.New("the cgroups are systemd's")
	}

	beside, err := groupDir()
	if err != nil {
		return nil, err
	}

	// The question marks match the 12 digits at the end of each name that groupName returns.
	sweepGroups(prefix + shown(slot) + "-????????????")
	dir := filepath.Join(beside, groupName(slot, nonce))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}

	f, err := os.Open(dir)
	if err != nil {
		removeGroup(dir)
	}

	return f, err
}

// groupDir returns the directory that contains the agent's own cgroup. If the agent is in the root
// cgroup, groupDir returns the root cgroup itself.
func groupDir() (string, error) {
	groups, err := proc.OwnCgroups()
	if err != nil {
		return "", err
	}

	for _, own := range groups {
		if !own.Unified() {
			continue
		}

		for _, root := range cgroupRoots {
			if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err == nil {
				return filepath.Join(root, filepath.Dir(own.Path)), nil
			}
		}
	}

	return "", fmt.Errorf("no unified hierarchy of cgroups: %w", fs.ErrNotExist)
}

// removeGroup removes a cgroup without processes. The kernel refuses to remove any other cgroup.
func removeGroup(dir string) {
	_ = os.Remove(dir) // if this fails, the next start of the plugin removes the cgroup
}

// dropGroup removes the cgroup of one instance that has ended.
func dropGroup(slot, nonce string) {
	if beside, err := groupDir(); err == nil {
		removeGroup(filepath.Join(beside, groupName(slot, nonce)))
	}
}
