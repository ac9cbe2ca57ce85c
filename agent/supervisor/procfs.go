package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/volagent/volagent/agent/pluginfile"
)

// procStat is what matters here of /proc/PID/stat (proc_pid_stat(5)).
type procStat struct {
	state   byte   // field 3
	session int    // field 6
	start   uint64 // field 22, clock ticks since boot
}

// alive reports whether the process still runs: a zombie does not.
func (s procStat) alive() bool { return s.state != 'Z' && s.state != 'X' }

// readStat reads /proc/PID/stat.
func readStat(pid int) (procStat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}
	// Field 2 is the command's name in brackets, which may hold anything.
	_, rest, ok := bytes.Cut(data[bytes.LastIndexByte(data, ')')+1:], []byte(" "))
	f := strings.Fields(string(rest))
	if !ok || len(f) < 20 || len(f[0]) != 1 {
		return procStat{}, fmt.Errorf("cannot make sense of /proc/%d/stat", pid)
	}
	session, err := strconv.Atoi(f[3])
	if err != nil {
		return procStat{}, fmt.Errorf("cannot make sense of /proc/%d/stat: %w", pid, err)
	}
	start, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return procStat{}, fmt.Errorf("cannot make sense of /proc/%d/stat: %w", pid, err)
	}
	return procStat{state: f[0][0], session: session, start: start}, nil
}

// environ returns one variable of a process's environment at its start, or "".
func environ(pid int, name string) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return ""
	}
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		if value, ok := bytes.CutPrefix(entry, []byte(name+"=")); ok {
			return string(value)
		}
	}
	return ""
}

// findNonce finds the process that was started with a nonce: the oldest
// session leader that has it in its environment. What the plugin itself has
// started inherits the environment and leads no session, or is younger.
func findNonce(nonce string) (pid int, start uint64) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, 0
	}
	for _, dir := range dirs {
		n, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || environ(n, pluginfile.EnvIncarnation) != nonce {
			continue
		}
		st, err := readStat(n)
		if err != nil || !st.alive() || st.session != n {
			continue
		}
		if pid == 0 || st.start < start {
			pid, start = n, st.start
		}
	}
	return pid, start
}

// bootID tells this boot from any other.
func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("cannot read the boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
