package agent

import (
	"cmp"
	"context"
	"time"

	"github.com/volagent/volagent/agent/container"
	"github.com/volagent/volagent/agent/dockervol"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// dockerLong and dockerShort are the timeouts of docker for its volume plugins. dockerLong applies
// when docker creates or mounts a volume, and dockerShort applies to all other requests.
const (
	dockerLong  = 2 * time.Minute
	dockerShort = time.Minute
)

// patience returns the time limits for requests of a container runtime. They are shorter than the
// runtime's own timeouts, so that the runtime receives the answer in time.
func patience(runtime string) dockervol.Patience {
	if runtime == plugin.RuntimePodman {
		t := container.PluginTimeout()
		t -= max(t/10, 500*time.Millisecond)
		return dockervol.Patience{Long: t, Short: t}
	}

	return dockervol.Patience{Long: dockerLong - 10*time.Second, Short: dockerShort - 10*time.Second}
}

// fetchForRuntimes makes sure that this host has a record of a shared volume, if the cluster has the
// volume.
func (a *Agent) fetchForRuntimes(ctx context.Context, id string) error {
	if fetch := a.fetchShared(); fetch != nil {
		return fetch(ctx, id)
	}
	return volume.Errorf(volume.ErrRefused, "cannot use shared volume %q: %s", id, cmp.Or(a.halt, "this host has no cluster"))
}

// runtimeCommands sends queries to container runtimes by running their commands.
type runtimeCommands struct{ via container.Via }

// Using returns the names of the containers that use a volume.
func (r runtimeCommands) Using(ctx context.Context, runtime, name string) ([]string, error) {
	return container.New(runtime).With(r.via).Using(ctx, name)
}
