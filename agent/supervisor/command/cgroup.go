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

// Without systemd, each command gets its own cgroup beside the agent's. A kill of the agent's
// cgroup therefore does not kill the plugin. This is best effort: the host may have no unified
// hierarchy, or the agent may lack write permission there.

// cgroupRoots lists the paths where the unified hierarchy may be mounted, with or without other
// hierarchies beside it.
var cgroupRoots = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

// SweepGroups removes the cgroups of all plugins that ended while no agent ran.
func SweepGroups() { sweepGroups(prefix + "*") }

// sweepGroups removes the matching cgroups that contain no process.
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

	// The question marks match the digits with which groupName ends a name.
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
// cgroup, groupDir returns the root cgroup.
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

// removeGroup removes an empty cgroup. The kernel refuses to remove a cgroup with processes.
func removeGroup(dir string) {
	_ = os.Remove(dir) // after a failure, the next start of the plugin retries the removal
}

// dropGroup removes the cgroup of an instance that has ended.
func dropGroup(slot, nonce string) {
	if beside, err := groupDir(); err == nil {
		removeGroup(filepath.Join(beside, groupName(slot, nonce)))
	}
}
