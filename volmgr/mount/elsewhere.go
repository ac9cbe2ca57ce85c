package mount

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// Elsewhere describes the processes, usually in containers, that have a mount or a part of it in a
// mount namespace other than the host's.
//
// Elsewhere does not count copies of the host's mounts. The mount
// namespaces of many services contain such copies, because these namespaces began as copies of the
// host's namespace. Elsewhere also ignores mounts at one of the given paths, even below another root directory, because these are the agent's own paths. In the
// host's own namespace, Elsewhere counts only mounts within a container's files. "docker cp" makes
// such a mount for a container that does not run.
//
// After an error the answer is unknown. The agent cannot inspect a process that has more
// capabilities than the agent, such as the service manager. Such a process causes an error only if
// it is in a container.
func (h *Host) Elsewhere(ctx context.Context, id volume.MountIdentity, paths []string) ([]string, error) {
	if id.Boot != h.boot {
		return nil, nil // no mount namespace survives a reboot
	}
	return bounded(ctx, &h.gate, kindScan, id.Device+id.Root, func() ([]string, error) { return h.elsewhere(id, paths) })
}

func (r *reader) elsewhere(id volume.MountIdentity, paths []string) ([]string, error) {
	// The filter keeps the mounts at the root of each namespace, because the function copied
	// compares them.
	skip := func(m *proc.Mount) (bool, bool) { return m.Mountpoint != "/" && !partOf(m, id), false }
	host, err := r.table(skip)
	if err != nil {
		return nil, fmt.Errorf("cannot read the mount table: %w", err)
	}

	spaces, closed, err := r.spaces()
	if err != nil {
		return nil, err
	}

	for _, pid := range closed {
		if r.inContainer(pid) {
			return nil, fmt.Errorf("the agent may not inspect process %d (%s)", pid, r.command(pid))
		}
	}

	var users []string
	for _, m := range host {
		if partOf(m, id) && containerID.MatchString(m.Mountpoint) && !slices.Contains(paths, m.Mountpoint) {
			users = append(users, fmt.Sprintf("a container that is not running has a mount at %q", m.Mountpoint))
		}
	}

	for _, s := range spaces {
		if s.name == r.ownSpace() {
			continue
		}

		table, err := s.mounts(nil, skip)
		if err != nil {
			return nil, fmt.Errorf("cannot read the mount table of process %d (%s): %w", s.pid, r.command(s.pid), err)
		}

		for _, m := range table {
			if partOf(m, id) && !copied(m, table, host, paths) {
				users = append(users, fmt.Sprintf("process %d (%s) has a mount at %q", s.pid, r.command(s.pid), m.Mountpoint))
			}
		}
	}

	return users, nil
}

// containerID matches a container's id, which container runtimes put into control group paths and
// into the paths of the container's files.
var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// inContainer reports whether a process is in a container. If the answer is unknown, it returns
// true.
func (p procfs) inContainer(pid int) bool {
	groups, err := os.ReadFile(p.procPath(pid, "cgroup"))
	return !gone(err) && (err != nil || containerID.Match(groups))
}

// partOf reports whether a mount shows the same directory tree as the mount with the given
// identity, or a part of this tree.
func partOf(m *proc.Mount, id volume.MountIdentity) bool {
	root, _ := rootPath(m.Root)
	return device(uint32(m.Major), uint32(m.Minor)) == id.Device && within(root, id.Root)
}

// copied reports whether a mount in the table of another namespace is a copy of a mount in the
// host's table.
func copied(m *proc.Mount, table, host []*proc.Mount, paths []string) bool {
	if slices.ContainsFunc(paths, func(path string) bool { return strings.HasSuffix(m.Mountpoint, path) }) {
		return true
	}

	ours, theirs := rootOf(host), rootOf(table)
	if ours == nil || theirs == nil || ours.Major != theirs.Major || ours.Minor != theirs.Minor || ours.Root != theirs.Root {
		return false
	}
	return slices.ContainsFunc(host, func(o *proc.Mount) bool { return o.Mountpoint == m.Mountpoint })
}

// rootOf returns the mount at the root of a namespace. If there are several, the last one in the
// table is the uppermost.
func rootOf(table []*proc.Mount) (root *proc.Mount) {
	for _, m := range table {
		if m.Mountpoint == "/" {
			root = m
		}
	}
	return root
}
