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

// Elsewhere describes the processes that have a mount, or a part of it, in a mount namespace other
// than the host's own, as containers do. It does not count copies of the host's mounts. They exist
// in a namespace that began as a copy of the host's, as many services have. It does not count
// mounts at one of the paths either, even below another root: these are the agent's own paths. In
// the host's own namespace only a mount within a container's files counts. "docker cp" makes one
// for a container that does not run.
//
// After an error the answer is unknown. Some processes may not be inspected because they have a
// capability that the agent lacks, for example the service manager. Of these, only processes in
// containers cause an error.
func (h *Host) Elsewhere(ctx context.Context, id volume.MountIdentity, paths []string) ([]string, error) {
	if id.Boot != h.boot {
		return nil, nil // no namespace survives a boot
	}
	return bounded(ctx, h, kindScan, id.Device+id.Root, scanFactor*h.bound, func() ([]string, error) { return h.elsewhere(id, paths) })
}

func (h *Host) elsewhere(id volume.MountIdentity, paths []string) ([]string, error) {
	// The root mounts stay in every table, because they identify a copy of the host's namespace.
	skip := func(m *proc.Mount) (bool, bool) { return m.Mountpoint != "/" && !partOf(m, id), false }
	host, err := h.table(skip)
	if err != nil {
		return nil, fmt.Errorf("cannot read the mount table: %w", err)
	}

	spaces, closed, err := h.spaces()
	if err != nil {
		return nil, err
	}

	for _, pid := range closed {
		if h.contained(pid) {
			return nil, fmt.Errorf("process %d (%s) may not be looked into", pid, h.command(pid))
		}
	}

	var users []string
	for _, m := range host {
		if partOf(m, id) && containerID.MatchString(m.Mountpoint) && !slices.Contains(paths, m.Mountpoint) {
			users = append(users, fmt.Sprintf("a container that does not run has it at %q", m.Mountpoint))
		}
	}

	for _, s := range spaces {
		if s.name == h.ownSpace() {
			continue
		}

		table, err := s.mounts(nil, skip)
		if err != nil {
			return nil, fmt.Errorf("cannot read the mount table of process %d (%s): %w", s.pid, h.command(s.pid), err)
		}

		for _, m := range table {
			if partOf(m, id) && !copied(m, table, host, paths) {
				users = append(users, fmt.Sprintf("process %d (%s) has it at %q", s.pid, h.command(s.pid), m.Mountpoint))
			}
		}
	}

	return users, nil
}

// containerID occurs in the control group paths of runtimes, and in the paths of their containers'
// files.
var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// contained reports whether a process is, or may be, in a container.
func (h *Host) contained(pid int) bool {
	groups, err := os.ReadFile(h.procPath(pid, "cgroup"))
	return !gone(err) && (err != nil || containerID.Match(groups))
}

// partOf reports whether a mount shows the same file system, at or below the same root.
func partOf(m *proc.Mount, id volume.MountIdentity) bool {
	root, _ := rootPath(m.Root)
	return device(uint32(m.Major), uint32(m.Minor)) == id.Device && within(root, id.Root)
}

// copied reports whether a mount of a namespace came from the host's table.
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

// rootOf returns the mount at the root of a namespace. The last one in the table is the uppermost.
func rootOf(table []*proc.Mount) (root *proc.Mount) {
	for _, m := range table {
		if m.Mountpoint == "/" {
			root = m
		}
	}
	return root
}
