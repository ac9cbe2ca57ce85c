package agent

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/volagent/volagent/agent/claim"
	"github.com/volagent/volagent/agent/container"
	"github.com/volagent/volagent/agent/dockervol"
	"github.com/volagent/volagent/agent/listen"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// dockerLong and dockerShort are the times that docker waits for its volume plugins. The long one
// is for creating and mounting a volume, the short one for all other requests.
const (
	dockerLong  = 2 * time.Minute
	dockerShort = time.Minute
)

// runtimes serves the container runtimes. Without a configured socket it only cleans up after them.
type runtimes struct {
	service *dockervol.Service
	server  *dockervol.Server
	socket  net.Listener // nil if no socket is configured
}

// newRuntimes opens the socket of the volume plugin, if one is configured.
func (a *agent) newRuntimes(claims *claim.Service, host *mount.Host, passed *listen.Inherited) (r runtimes, err error) {
	r.service = &dockervol.Service{
		Store: runtimeStore{a.db}, Claims: claims, Volumes: a.volumes, Plugins: a.plugins,
		Containers: runtimeCommands{a.plugins.Outside}, Mounts: host, Size: spec.ParseSize, Remapped: dockervol.RemappedRoot, Patience: patience,
		Events: a.events.Add, Log: a.log.Named("runtime"),
	}

	r.server = dockervol.NewServer(r.service)
	if a.c.DockerSocket == "" {
		return r, nil
	}
	if r.socket, err = passed.Open(a.c.DockerSocket, 0, runtimeMode); err != nil {
		return r, fmt.Errorf("cannot serve docker and podman at docker_socket: %w", err)
	}

	return r, nil
}

// patience returns how long a request may take. It leaves the runtime time to receive the answer
// before its own timeout.
func patience(runtime string) dockervol.Patience {
	if runtime == volume.RuntimePodman {
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

// runtimeStore adapts the state database for dockervol.
type runtimeStore struct{ records.Store }

// Update makes one change. Either all of it is on disk, or none.
func (s runtimeStore) Update(ctx context.Context, fn func(dockervol.Tx) error) error {
	return s.DB.Update(ctx, func(tx *statedb.Tx) error { return fn(tx) })
}

// warnDeadlocks emits one event for each of these plugins, until ctx ends.
func (a *agent) warnDeadlocks(ctx context.Context) {
	told := map[string]bool{}
	tick := time.NewTicker(claim.ReapEvery)
	defer tick.Stop()

	for {
		for _, p := range a.plugins.Deadlocks() {
			if !told[p.Subject] {
				a.events.Add(volume.Event{Type: "plugin-warning", Plugin: p.Subject, Message: p.Message})
			}
			told[p.Subject] = true
		}

		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
