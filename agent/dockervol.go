package agent

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/claim"
	"github.com/volagent/volagent/agent/container"
	"github.com/volagent/volagent/agent/dockervol"
	"github.com/volagent/volagent/agent/listen"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/suggest"
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
func (a *agent) newRuntimes(claims *claim.Service, plugins pluginSet, host *mount.Host, passed *listen.Inherited) (r runtimes, err error) {
	r.service = &dockervol.Service{
		Store: runtimeStore{a.db}, Claims: claims, Volumes: a.volumes, Plugins: plugins,
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
	return s.DB.Update(ctx, func(tx *statedb.Tx) error { return fn(runtimeTx{tx}) })
}

// RuntimeVolume returns a volume that a container runtime knows by name.
func (s runtimeStore) RuntimeVolume(runtime, name string) (volume.RuntimeVolume, bool) {
	return statedb.RuntimeVolumes.Get(s, volume.RuntimeKey(runtime, name))
}

// RuntimeVolumes returns the volumes of all container runtimes.
func (s runtimeStore) RuntimeVolumes() []volume.RuntimeVolume { return statedb.RuntimeVolumes.All(s) }

// runtimeTx is one change of the volumes of container runtimes.
type runtimeTx struct{ *statedb.Tx }

// RuntimeVolume returns a volume that a container runtime knows by name.
func (t runtimeTx) RuntimeVolume(runtime, name string) (volume.RuntimeVolume, bool) {
	return statedb.RuntimeVolumes.Get(t, volume.RuntimeKey(runtime, name))
}

// RuntimeVolumes returns the volumes of all container runtimes.
func (t runtimeTx) RuntimeVolumes() []volume.RuntimeVolume { return statedb.RuntimeVolumes.All(t) }

// PutRuntimeVolume stores a volume of a container runtime.
func (t runtimeTx) PutRuntimeVolume(v volume.RuntimeVolume) { statedb.RuntimeVolumes.Put(t, v) }

// DeleteRuntimeVolume deletes a volume of a container runtime.
func (t runtimeTx) DeleteRuntimeVolume(runtime, name string) {
	statedb.RuntimeVolumes.Delete(t, volume.RuntimeKey(runtime, name))
}

// byDocker reports whether docker runs a part of a plugin.
func byDocker(part supervisor.Status) bool {
	return part.Running["container.runtime"] == volume.RuntimeDocker
}

// deadlock returns a warning for a plugin that docker runs and that docker needs for its own
// volumes. At a boot, containers with these volumes start before the plugin does. It returns "" if
// there is no such problem.
func (p pluginSet) deadlock(st supervisor.Status) string {
	if !slices.ContainsFunc(st.Parts, byDocker) {
		return ""
	}

	var names []string
	for _, v := range statedb.RuntimeVolumes.All(p.db) {
		if r, ok := p.db.Volume(v.VolumeID); ok && v.Runtime == volume.RuntimeDocker && r.Volume.PluginID == st.ID {
			names = append(names, v.Name)
		}
	}

	if len(names) == 0 {
		return ""
	}

	slices.Sort(names)
	return fmt.Sprintf("docker runs it, and uses it for volumes of its own (%s): at a boot, and when docker is started again, their containers fail that start before it; "+
		"have podman, a unit or exec run it", strings.Join(names, ", "))
}

// deadlocks returns the warnings of deadlock as problems, for the host's status.
func (a *agent) deadlocks() (problems []api.Problem) {
	plugins := pluginSet{a.plugins, a.db, a.halt}
	for _, st := range plugins.Statuses() {
		if words := plugins.deadlock(st); words != "" {
			problems = append(problems, api.Problem{Subject: st.ID, Message: words, Command: suggest.Command("volctl plugin status %s", st.ID)})
		}
	}

	return problems
}

// warnDeadlocks emits one event for each of these plugins, until ctx ends.
func (a *agent) warnDeadlocks(ctx context.Context) {
	told := map[string]bool{}
	tick := time.NewTicker(claim.ReapEvery)
	defer tick.Stop()

	for {
		for _, p := range a.deadlocks() {
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
