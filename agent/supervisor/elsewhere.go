package supervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Listener is a process that listens on a plugin's socket below a runtime dir.
type Listener struct {
	PID    int // 0 if it is not in the agent's pid namespace or one below it
	Socket string
	// DataDir is the data dir of the agent that started the process; empty if it is unknown.
	DataDir string
}

// Listeners returns the processes that listen on the sockets of plugins below a runtime dir.
func Listeners(ctx context.Context, runtimeDir string) (all []Listener) {
	sockets, _ := filepath.Glob(filepath.Join(runtimeDir, "plugins", "*", "csi.sock")) // the pattern is valid
	for _, path := range sockets {
		if who, err := connect(ctx, path); err == nil {
			l := Listener{PID: who.pid, Socket: path}
			if dir := logDirOf(who.pid); dir != "" {
				l.DataDir = filepath.Dir(filepath.Dir(dir)) // see Options.paths
			}

			all = append(all, l)
		}
	}

	return all
}

// logDirOf returns the directory of the log to which a plugin's process writes its output. The
// agent that started the process opened that file in its own data dir. The result is empty if the
// output goes elsewhere.
func logDirOf(pid int) string {
	to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/1", pid))
	if err != nil || !strings.HasPrefix(filepath.Base(to), "plugin.log") {
		return ""
	}
	return filepath.Dir(to)
}
