package mount

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/suggest"
)

// errVanished reports that the mount changed or disappeared while the agent inspected it.
var errVanished = errors.New("the mount changed during the check")

// procfs is the path /proc. Its methods read the kernel's data about processes and about the mounts
// of this process.
type procfs string

// procPath returns the path of a file that describes a process.
func (p procfs) procPath(pid int, name string) string {
	return string(p) + "/" + strconv.Itoa(pid) + "/" + name
}

// processes lists the pids of all processes in ascending order.
func (p procfs) processes() ([]int, error) {
	pids, err := numbers(string(p))
	if err != nil {
		return nil, fmt.Errorf("cannot list processes: %w", err)
	}
	return pids, nil
}

// numbers returns those names in a directory that are numbers, in ascending order.
func numbers(dir string) ([]int, error) {
	all, err := names(dir, -1)
	if err != nil {
		return nil, err
	}

	var out []int
	for _, n := range all {
		if i, err := strconv.Atoi(n); err == nil {
			out = append(out, i)
		}
	}

	slices.Sort(out)
	return out, nil
}

// gone reports whether an error means that a process or its data no longer exists. A zombie process
// has no such data either.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
}

// denied reports whether an error means that the agent may not inspect a process. Such a process
// has more capabilities than the agent, or is in another user namespace.
func denied(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) }

// command returns the short name of a process, which the kernel stores. It does not read the full
// command line from the memory of the process, because that can hang if the process hangs.
func (p procfs) command(pid int) string {
	data, err := os.ReadFile(p.procPath(pid, "comm"))
	if err != nil {
		return "?"
	}
	return strings.TrimSuffix(string(data), "\n")
}

// unit returns the system unit that contains a process, or an empty string. It ignores the units of
// a user's service manager.
func (p procfs) unit(pid int) string {
	data, err := os.ReadFile(p.procPath(pid, "cgroup"))
	if err != nil {
		return ""
	}
	return suggest.UnitOf(string(data))
}

// fdPath returns the current path of an open file.
func (p procfs) fdPath(fd int) (string, error) { return os.Readlink(p.fdLink(fd)) }

// fdLink returns a path that leads to an open file, even if the file has been renamed.
func (p procfs) fdLink(fd int) string { return string(p) + "/self/fd/" + strconv.Itoa(fd) }

// fdMountID returns the mount id of an open file of a process ("self" or a pid). It needs no answer
// from the file system.
func (p procfs) fdMountID(pid string, fd int) (int, error) {
	data, err := os.ReadFile(filepath.Join(string(p), pid, "fdinfo", strconv.Itoa(fd)))
	if err != nil {
		return 0, err
	}

	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strconv.Atoi(strings.TrimSpace(v))
		}
	}

	return 0, fmt.Errorf("cannot find mnt_id of descriptor %d of process %s", fd, pid)
}

// SameNetwork reports whether a process is in the agent's network namespace.
func (p procfs) SameNetwork(pid int) (bool, error) {
	own, err := os.Readlink(string(p) + "/self/ns/net")
	if err != nil {
		return false, err
	}
	theirs, err := os.Readlink(p.procPath(pid, "ns/net"))
	return err == nil && theirs == own, err
}

// space is a mount namespace with the threads in it.
type space struct {
	name  string // such as "mnt:[4026531841]"
	pid   int    // the lowest pid of a process in the namespace
	tasks []string
}

// spaces returns the mount namespaces of all processes and threads, and the processes that the
// agent may not inspect. It does not find a namespace without processes, which exists only through
// a descriptor or a bind mount.
func (p procfs) spaces() (spaces []*space, closed []int, err error) {
	pids, err := p.processes()
	if err != nil {
		return nil, nil, err
	}

	byName := map[string]*space{}
	for _, pid := range pids {
		err := p.addSpaces(pid, func(name, task string) {
			s := byName[name]
			if s == nil {
				s = &space{name: name, pid: pid}
				byName[name] = s
				spaces = append(spaces, s)
			}
			s.tasks = append(s.tasks, task)
		})

		switch {
		case err == nil || gone(err):
		case denied(err):
			closed = append(closed, pid)
		default:
			return nil, nil, fmt.Errorf("cannot read the mount namespace of process %d (%s): %w", pid, p.command(pid), err)
		}
	}

	return spaces, closed, nil
}

// addSpaces calls add for every thread of a process, with the name of the thread's mount namespace
// and the thread's directory in procfs.
func (p procfs) addSpaces(pid int, add func(name, task string)) error {
	dir := p.procPath(pid, "task")
	tids, err := numbers(dir)
	if err != nil {
		return err
	}

	for _, tid := range tids {
		task := dir + "/" + strconv.Itoa(tid)
		name, err := os.Readlink(task + "/ns/mnt")
		if gone(err) {
			continue
		}
		if err != nil {
			return err
		}

		add(name, task)
	}

	return nil
}

// mounts reads the mount table of a namespace with proc.ReadMounts, through the first thread that
// still exists. It returns nothing if all threads have ended.
func (s *space) mounts(keep func(line []byte) bool, filter proc.Filter) ([]*proc.Mount, error) {
	for _, task := range s.tasks {
		table, err := proc.ReadMounts(task+"/mountinfo", keep, filter)
		if gone(err) {
			continue
		}
		return table, err
	}

	return nil, nil
}

// table reads the mounts of this namespace, without those that filter skips.
func (p procfs) table(filter proc.Filter) ([]*proc.Mount, error) {
	return proc.ReadMounts(string(p)+"/self/mountinfo", nil, filter)
}

// mountByID returns the mount with the given id in the mount table.
func (p procfs) mountByID(id int) (*proc.Mount, error) {
	table, err := p.table(func(m *proc.Mount) (bool, bool) { return m.ID != id, m.ID == id })
	if err != nil {
		return nil, err
	}
	if len(table) == 0 {
		return nil, errVanished
	}
	return table[0], nil
}

// Changes calls fn at the start, and again whenever a process has made, changed or removed mounts
// in this mount namespace. The kernel reports only that something has changed. After each later
// call, Changes waits for the duration pause. All changes during the call and the pause cause only
// one more call. Changes returns nil when ctx ends.
func (p procfs) Changes(ctx context.Context, pause time.Duration, fn func()) error {
	table, err := open(string(p)+"/self/mountinfo", unix.O_RDONLY)
	if err != nil {
		return fmt.Errorf("cannot watch the mount table: %w", err)
	}
	defer closeFD(table)
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("cannot watch the mount table: eventfd: %w", err)
	}
	defer closeFD(wake)
	stop := context.AfterFunc(ctx, func() {
		// The write fails only if the counter is full, and a full counter also wakes the poll.
		_, _ = unix.Write(wake, binary.NativeEndian.AppendUint64(nil, 1))
	})
	defer stop()
	fn()
	for ctx.Err() == nil {
		// The kernel reports a change of the table as an urgent condition (proc_pid_mountinfo(5)).
		fds := []unix.PollFd{{Fd: int32(table), Events: unix.POLLPRI}, {Fd: int32(wake), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("cannot watch the mount table: poll: %w", err)
		}
		if fds[0].Revents == 0 {
			continue
		}

		fn()
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}

	return nil
}
