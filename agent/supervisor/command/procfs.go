package command

import (
	"path/filepath"
	"strconv"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/volmgr/proc"
)

// findNonce finds the process that was started with a nonce. It returns the oldest session leader
// with the nonce in its environment. The plugin's own children inherit the nonce, but they are not
// session leaders, or they are younger.
func findNonce(nonce string) (pid int, start uint64) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, 0
	}

	for _, dir := range dirs {
		n, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || runner.Environ(n, pluginfile.EnvIncarnation) != nonce {
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
