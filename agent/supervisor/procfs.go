package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/volmgr/proc"
)

// environ returns one variable of the environment with which a process started, or "".
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

// findNonce finds the process that was started with a nonce: the oldest session leader that has it
// in its environment. Processes that the plugin started inherit the environment, but lead no
// session or are younger.
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

		st, err := proc.ReadStat(n)
		if err != nil || !st.Alive() || st.Session != n {
			continue
		}
		if pid == 0 || st.Start < start {
			pid, start = n, st.Start
		}
	}

	return pid, start
}
