package mount

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/suggest"
)

// processes lists the pids of all processes in ascending order.
func (h *Host) processes() ([]int, error) {
	pids, err := numbers(h.proc)
	if err != nil {
		return nil, fmt.Errorf("cannot list processes: %w", err)
	}
	return pids, nil
}

// numbers lists those entries of a directory whose names are numbers.
func numbers(dir string) ([]int, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }() // a directory has no data to lose on close
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}

	var out []int
	for _, n := range names {
		if i, err := strconv.Atoi(n); err == nil {
			out = append(out, i)
		}
	}

	slices.Sort(out)
	return out, nil
}

// gone reports whether an error means that a process or its data no longer exists. A zombie process
// has neither mounts nor open files.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
}

// command returns the short name of a process, which the kernel stores. The full command line is in
// the memory of the process, and reading it may hang together with the process.
func (h *Host) command(pid int) string {
	data, err := os.ReadFile(h.procPath(pid, "comm"))
	if err != nil {
		return "?"
	}
	return strings.TrimSuffix(string(data), "\n")
}

// unit returns the system unit that contains a process, or an empty string. It does not return
// units of a user's service manager.
func (h *Host) unit(pid int) string {
	data, err := os.ReadFile(h.procPath(pid, "cgroup"))
	if err != nil {
		return ""
	}
	return suggest.UnitOf(string(data))
}

func (h *Host) procPath(pid int, name string) string {
	return h.proc + "/" + strconv.Itoa(pid) + "/" + name
}

// space is a mount namespace together with the threads in it.
type space struct {
	name  string // such as "mnt:[4026531841]"
	pid   int    // the lowest pid in the namespace
	tasks []string
}

// denied reports whether an error means that the agent may not inspect a process. Such a process
// has capabilities that the agent lacks, or is in another user namespace.
func denied(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) }

// spaces lists the mount namespaces of all processes and threads, and the processes that the agent
// may not inspect. It does not find a namespace that has no process and exists only through a
// descriptor or a bind mount.
func (h *Host) spaces() (spaces []*space, closed []int, err error) {
	pids, err := h.processes()
	if err != nil {
		return nil, nil, err
	}

	byName := map[string]*space{}
	for _, pid := range pids {
		err := h.addSpaces(pid, func(name, task string) {
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
			return nil, nil, fmt.Errorf("cannot read the mount namespace of process %d (%s): %w", pid, h.command(pid), err)
		}
	}

	return spaces, closed, nil
}

// addSpaces calls add for every thread of a process.
func (h *Host) addSpaces(pid int, add func(name, task string)) error {
	dir := h.procPath(pid, "task")
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

// ownSpace returns the agent's own mount namespace in the form of the links in /proc.
func (h *Host) ownSpace() string { return fmt.Sprintf("mnt:[%d]", h.namespace) }

// mounts reads the mount table of a namespace like proc.ReadMounts, through the first thread that
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
