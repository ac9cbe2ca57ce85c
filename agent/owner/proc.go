package owner

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

// process is one process of the current boot. Its pid and its start time identify it.
type process struct {
	pid   int
	start uint64 // the start time, as proc.Stat reports it
}

func processOf(o volume.Owner) process { return process{o.PID, o.StartTime} }

// none reports whether err means that a process does not exist.
func none(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// life reports whether the process is alive.
func (p process) life() volume.Life {
	st, err := proc.ReadStat(p.pid)
	switch {
	case none(err):
		return volume.LifeGone
	case err != nil:
		return volume.LifeUnknown
	case !st.Began(p.start) || st.Dead():
		return volume.LifeGone
	default:
		return volume.LifeRunning
	}
}

// command returns the program name of a process, or "" if the name cannot be read.
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

// resolve returns the start time of the process with the given pid, as the agent's pid namespace
// counts pids. A caller in a container may know the same process by another pid.
func resolve(pid int) (start uint64, err error) {
	if pid <= 0 {
		return 0, volume.Errorf(volume.ErrInvalid, "%d is not a pid", pid)
	}

	st, err := proc.ReadStat(pid)
	if none(err) || err == nil && st.Dead() {
		return 0, volume.Errorf(volume.ErrRefused, "pid %d cannot own a claim: the agent finds no running process with this pid", pid).
			WithHint("name a process by its pid on the host, or claim with --owner none")
	}
	if err != nil {
		return 0, fmt.Errorf("cannot read the state of pid %d: %w", pid, err)
	}
	if leader := threadGroup(pid); leader != pid && leader != 0 {
		return 0, volume.Errorf(volume.ErrInvalid, "%d is a thread of pid %d, not a process", pid, leader)
	}

	return st.Start, nil
}

// threadGroup returns the pid of the process to which the thread tid belongs. It returns 0 if the
// pid cannot be read.
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
