package supervisor

import (
	"context"
	"path/filepath"

	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/agent/supervisor/runner"
)

// Listener is a process that listens on a plugin's socket below a runtime dir.
type Listener struct {
	PID    int // 0 if the process is outside the agent's pid namespace and the namespaces below it
	Socket string
	// DataDir is the data dir of the agent that started the process, or empty if it is unknown.
	DataDir string
}

// Listeners returns the processes that listen on the sockets of plugins below a runtime dir.
func Listeners(ctx context.Context, runtimeDir string) (all []Listener) {
	for _, path := range part.Sockets(runtimeDir) {
		if who, err := runner.Connect(ctx, path); err == nil {
			l := Listener{PID: who.PID, Socket: path}
			if dir := runner.LogDirOf(who.PID); dir != "" {
				l.DataDir = filepath.Dir(filepath.Dir(dir)) // see part.Dirs
			}

			all = append(all, l)
		}
	}

	return all
}
