package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/volmgr/proc"
)

// Without systemd a command gets a cgroup of its own, beside the agent's, so
// that whoever kills the agent's cgroup does not reach it. That is best effort:
// the host may have no unified hierarchy, or not let us write there.

// cgroupRoots is where the unified hierarchy is mounted, alone or beside others.
var cgroupRoots = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

// groupPrefix begins the names of all cgroups of plugins.
const groupPrefix = "volagent-plugin-"

// sweepGroups removes the cgroups that match, of plugins that ended while there
// was no agent. One that is in use cannot be removed.
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

// group makes the cgroup for one incarnation and opens it.
func (r *execRunner) group(nonce string) (*os.File, error) {
	if systemd.Booted() {
		return nil, errors.New("the cgroups are systemd's")
	}
	beside, err := groupDir()
	if err != nil {
		return nil, err
	}
	sweepGroups(groupPrefix + shown(r.p.slot) + "-????????????") // as many as groupName has
	dir := filepath.Join(beside, groupName(r.p.slot, nonce))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		removeGroup(dir)
	}
	return f, err
}

// groupName is the cgroup's name of one incarnation.
func groupName(slot, nonce string) string {
	return strings.TrimSuffix(serviceName(slot, nonce), ".service")
}

// groupDir is the directory of the agent's own cgroup's neighbours; below it,
// where the agent is at the top.
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

// removeGroup removes a cgroup in which nothing runs; others it cannot.
func removeGroup(dir string) {
	_ = os.Remove(dir) // the next start of the plugin tries again
}

// dropGroup removes the cgroup of an incarnation that has ended.
func (r *execRunner) dropGroup(nonce string) {
	if beside, err := groupDir(); err == nil {
		removeGroup(filepath.Join(beside, groupName(r.p.slot, nonce)))
	}
}
