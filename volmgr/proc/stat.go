package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

// Stat contains the fields of /proc/PID/stat that the agent needs.
type Stat struct {
	State   byte // field 3
	Session int  // field 6
	Threads int  // field 20
	// Start is the time when the process began. Its unit is a clock tick of 10 ms, and it counts
	// from the boot, in the initial time namespace. Start is field 22 minus the offset of the
	// agent's own time namespace.
	Start uint64
}

// Alive reports whether the first thread of the process is running. The first thread of a zombie is
// not running.
func (s Stat) Alive() bool { return s.State != 'Z' && s.State != 'X' }

// Dead reports whether all threads of the process have exited, and the process only waits for its
// parent. A process of which only the first thread has exited is not dead.
func (s Stat) Dead() bool { return !s.Alive() && s.Threads <= 1 }

// Began reports whether the process began at the time start, which was recorded earlier. Began
// accepts a difference of one tick, because the offset of a time namespace may contain a fraction
// of a tick. The kernel does not reuse a pid within one tick.
func (s Stat) Began(start uint64) bool { return s.Start <= start+1 && start <= s.Start+1 }

// ReadStat returns the Stat of a process. If there is no such process, the error wraps
// os.ErrNotExist or ESRCH.
func ReadStat(pid int) (Stat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Stat{}, err
	}

	shift, err := ownShift()
	if err != nil {
		return Stat{}, fmt.Errorf("cannot read the start time of process %d: %w", pid, err)
	}

	s, err := parseStat(data, shift)
	if err != nil {
		return Stat{}, fmt.Errorf("cannot parse /proc/%d/stat: %w", pid, err)
	}

	return s, nil
}

// parseStat parses a stat line. In the reader's time namespace, the boot time is shifted by shift
// nanoseconds.
func parseStat(data []byte, shift int64) (s Stat, err error) {
	// Field 2 is the name of the command in parentheses. The name may contain any characters, even
	// ")".
	f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(f) < 20 || len(f[0]) != 1 {
		return s, errors.New("it has too few fields")
	}

	s.State = f[0][0]
	number := func(field int) int64 {
		n, nerr := strconv.ParseInt(f[field-3], 10, 64)
		err = errors.Join(err, nerr)
		return n
	}

	s.Session, s.Threads = int(number(6)), int(number(20))
	const tick = 10_000_000 // USER_HZ is 100 on every architecture that Go runs on
	start := number(22) - shift/tick
	if shift%tick > 0 { // the fraction of a tick may have moved the time to the next tick
		start--
	}

	s.Start = uint64(max(start, 0))
	return s, err
}

// ownShift returns the offset of the boot time in the agent's own time namespace, in nanoseconds.
// It reads the offset only once, because a process with several threads cannot change its time
// namespace.
var ownShift = sync.OnceValues(func() (int64, error) {
	own, err := os.Readlink("/proc/self/ns/time")
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil // this kernel has no time namespaces
	}

	children, cerr := os.Readlink("/proc/self/ns/time_for_children")
	// This file contains the offsets of the namespace for child processes. They apply to this
	// process only if its own namespace is the same.
	raw, rerr := os.ReadFile("/proc/self/timens_offsets")
	if err := errors.Join(err, cerr, rerr); err != nil {
		return 0, err
	}

	const initial = "time:[4026531834]" // the kernel's constant PROC_TIME_INIT_INO
	switch own {
	case initial:
		return 0, nil
	case children:
		return bootShift(string(raw))
	}

	return 0, errors.New("the offset of the agent's time namespace is unknown, because child processes are in another time namespace")
})

// bootShift returns the offset of the boot time in the text of timens_offsets (time_namespaces(7)).
func bootShift(offsets string) (int64, error) {
	for line := range strings.Lines(offsets) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != "boottime" && f[0] != "7" { // the name or the number of CLOCK_BOOTTIME
			continue
		}

		sec, err := strconv.ParseInt(f[1], 10, 64)
		nsec, nerr := strconv.ParseInt(f[2], 10, 64)
		return sec*1e9 + nsec, errors.Join(err, nerr)
	}

	return 0, errors.New("/proc/self/timens_offsets has no offset of the boot time")
}
