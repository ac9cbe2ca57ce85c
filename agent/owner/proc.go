package owner

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

// process is one process of this boot: a pid, and when it got it.
type process struct {
	pid   int
	start uint64 // clock ticks since the boot
}

func processOf(o volume.Owner) process { return process{o.PID, o.StartTime} }

// stat is what matters here of /proc/PID/stat (proc_pid_stat(5)).
type stat struct {
	state   byte   // field 3
	threads int    // field 20
	start   uint64 // field 22, clock ticks since the boot
}

// dead reports whether all of the process has exited and it only waits for its
// parent. A process whose first thread alone has exited runs.
func (s stat) dead() bool { return (s.state == 'Z' || s.state == 'X') && s.threads <= 1 }

func readStat(pid int) (stat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	// Field 2 is the command's name in brackets, which may hold anything.
	f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(f) < 20 || len(f[0]) != 1 {
		return stat{}, fmt.Errorf("cannot make sense of /proc/%d/stat", pid)
	}
	threads, err := strconv.Atoi(f[17])
	if err != nil {
		return stat{}, fmt.Errorf("cannot make sense of /proc/%d/stat: %w", pid, err)
	}
	start, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("cannot make sense of /proc/%d/stat: %w", pid, err)
	}
	return stat{state: f[0][0], threads: threads, start: start}, nil
}

// none reports whether an error says that there is no such process.
func none(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// life looks at a process.
func (p process) life() volume.Life {
	st, err := readStat(p.pid)
	switch {
	case none(err):
		return volume.LifeGone
	case err != nil:
		return volume.LifeUnknown
	case st.start != p.start || st.dead():
		return volume.LifeGone
	default:
		return volume.LifeRunning
	}
}

// command is the name of what a process runs, empty if it cannot be told.
func command(pid int) string {
	if pid <= 0 {
		return ""
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// resolve finds out when the process with a pid began. The pid is as this agent
// sees it: a caller in a container may know the process by another.
func resolve(pid int) (start uint64, err error) {
	if pid <= 0 {
		return 0, volume.Errorf(volume.ErrInvalid, "%d is no pid", pid)
	}
	st, err := readStat(pid)
	if none(err) || err == nil && st.dead() {
		return 0, volume.Errorf(volume.ErrRefused, "pid %d cannot own a claim: the agent sees no such process running", pid).
			WithHint("name a process by its pid on the host, or claim with --owner none")
	}
	if err != nil {
		return 0, fmt.Errorf("cannot look at pid %d: %w", pid, err)
	}
	if leader := threadGroup(pid); leader != pid && leader != 0 {
		return 0, volume.Errorf(volume.ErrInvalid, "%d is a thread of pid %d, and no process", pid, leader)
	}
	return st.start, nil
}

// threadGroup is the process that a thread is of; 0 if that cannot be told.
func threadGroup(tid int) int {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, "Tgid:"); ok {
			if n, err := strconv.Atoi(strings.TrimSpace(v)); err == nil {
				return n
			}
		}
	}
	return 0
}
