package supervisor

import (
	"context"
	"path/filepath"

	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/agent/supervisor/runner"
)

// Listener is a process that listens on the socket of a plugin, in a runtime dir.
type Listener struct {
	PID    int // 0 if the agent's pid namespace does not contain the process
	Socket string
	// DataDir is the data dir of the agent that started the process, or empty if it is unknown.
	DataDir string
}

// Listeners returns the processes that listen on the sockets of plugins in a runtime dir.
func Listeners(ctx context.Context, runtimeDir string) (all []Listener) {
	for _, path := range part.Sockets(runtimeDir) {
		if who, err := runner.Connect(ctx, path); err == nil {
			l := Listener{PID: who.PID, Socket: path}
			if dir := runner.LogDirOf(who.PID); dir != "" {
				// part.Dirs places the log directory two levels below the data dir
				l.DataDir = filepath.Dir(filepath.Dir(dir))
			}

			all = append(all, l)
		}
	}

	return all
}
