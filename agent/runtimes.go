package agent

import (
	"context"
	"time"

	"github.com/volagent/volagent/agent/container"
	"github.com/volagent/volagent/agent/dockervol"
	"github.com/volagent/volagent/volmgr/plugin"
)

// dockerLong and dockerShort are the times that docker waits for its volume plugins. The long one
// is for creating and mounting a volume, the short one for all other requests.
const (
	dockerLong  = 2 * time.Minute
	dockerShort = time.Minute
)

// patience returns how long a request may take. It leaves the runtime time to receive the answer
// before its own timeout.
func patience(runtime string) dockervol.Patience {
	if runtime == plugin.RuntimePodman {
		t := container.PluginTimeout()
		t -= max(t/10, 500*time.Millisecond)
		return dockervol.Patience{Long: t, Short: t}
	}

	return dockervol.Patience{Long: dockerLong - 10*time.Second, Short: dockerShort - 10*time.Second}
}

// runtimeCommands asks the runtimes through their own commands.
type runtimeCommands struct{ via container.Via }

// Using returns the names of the containers that use a volume.
func (r runtimeCommands) Using(ctx context.Context, runtime, name string) ([]string, error) {
	return container.New(runtime).With(r.via).Using(ctx, name)
}
