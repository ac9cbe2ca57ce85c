package agent

import (
	"context"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiserver"
	"github.com/volagent/volagent/agent/backup"
	"github.com/volagent/volagent/agent/claim"
	"github.com/volagent/volagent/agent/classes"
	"github.com/volagent/volagent/agent/dockervol"
	"github.com/volagent/volagent/agent/drain"
	"github.com/volagent/volagent/agent/facts"
	"github.com/volagent/volagent/agent/identity"
	"github.com/volagent/volagent/agent/listen"
	"github.com/volagent/volagent/agent/metrics"
	"github.com/volagent/volagent/agent/owndir"
	"github.com/volagent/volagent/agent/owner"
	"github.com/volagent/volagent/agent/plugins"
	"github.com/volagent/volagent/agent/plugintest"
	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/agent/reconcile"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/agent/service"
	"github.com/volagent/volagent/agent/status"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/agent/volumefiles"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/bytesize"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/volume"
)

// connectPlugins creates the supervisor and reads the plugin files. It runs before the other
// connect functions, which need the plugins.
func (a *Agent) connectPlugins(context.Context) error {
	identity.WarnUnshared(a.host, a.c.MountRoot(), a.log)
	a.c.WarnLong(a.log)

	a.metrics = metrics.New()
	a.systemd = systemd.New(systemd.Options{Log: a.log.Named("systemd")})
	a.changes.subscribe(a.tellChange)

	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot tell where this program is: %w", err)
	}

	var client csiclient.Options
	if a.seams.Interceptor != nil {
		client.Interceptors = []grpc.UnaryClientInterceptor{a.seams.Interceptor}
	}
	var launch []string
	if systemd.InService() {
		launch = []string{self, launchCommand}
	}

	store, usage := records.Plugins{Store: a.db}, plugins.Usage{Records: a.db, Secrets: a.secrets}
	a.plugins = plugins.Set{Usage: usage, Halt: a.halt, Supervisor: supervisor.New(supervisor.Options{
		PluginDir: a.c.PluginDir, DataDir: a.c.DataDir, RuntimeDir: a.c.RuntimeDir, NodeID: a.node.ID,
		BuiltinArgv: []string{self, localDriverCommand},
		Systemd:     a.systemd, ServiceArgv: launch,
		Store: store, Registry: store, Secrets: plugins.FileSecrets{}, Logger: a.log, Client: client, Host: a.host,
		InUse: usage.InUse, HasVolumes: usage.HasVolumes, FUSE: usage.FUSEClaims, Known: usage.KnownSecrets,
		OnChange: a.changes.publish,
		OnWarning: func(id, part, warning string) {
			a.events.Add(volume.Event{Type: volume.EventPluginWarning, Plugin: id, Part: part, Message: warning})
		},
		Observe: func(id string) csiclient.Observer { return a.metrics.Calls(id) },
	})}

	return a.plugins.Load()
}

// tellChange adds an event when the state of a plugin's part has changed.
func (a *Agent) tellChange(c supervisor.Change) {
	msg := c.View.News()
	if c.Part != "" {
		msg = c.Part + " is " + msg
	}
	a.events.Add(volume.Event{Type: volume.PluginEvent(c.View.State), Plugin: c.Plugin, Part: c.Part, Message: msg})
}

// connectVolumes creates the services through which a claim passes, from its admission to the steps
// on the host.
func (a *Agent) connectVolumes(ctx context.Context) error {
	owners := owner.New(owner.Options{Boot: a.host.Boot(), Log: a.log.Named("owner"), Bus: a.systemd, Mounts: a.host, References: a.db.References})
	if err := owners.Open(); err != nil {
		return err
	}

	a.owners = owners

	steps := volmgr.New(volmgr.Options{Root: a.c.MountRoot(), Host: a.host, Plugin: a.forStep, Secrets: a.secrets.Of})
	a.dirs = owndir.Dirs{Manager: steps, Records: a.db}
	if a.was.Boot != "" && a.was.Boot != a.node.Boot {
		a.dirs.Tidy(a.log)
	}
	if a.halt == "" {
		a.dirs.RepairModes(ctx, a.log)
	}

	if err := a.connectCluster(ctx, steps); err != nil {
		return err
	}

	a.volumeEvents.subscribe(a.tellVolumes)
	queue := reconcile.Options{
		Store: records.WithLeftovers{Store: a.db}, Plugins: a.plugins, Host: steps, Halt: a.halt, Events: a.volumeEvents.publish, Log: a.log.Named("volume"),
		Blocked: a.db.PendingFor, Undone: a.leftoverUndone, Crashed: a.was.ID != "" && identity.Ended(a.was, a.node) == volume.Crashed, Begun: a.begun(),
	}
	a.joinQueue(&queue)
	a.queue = reconcile.New(queue)

	a.volumes = provision.New(provision.Options{
		Store: records.Provisioning{Store: a.db}, Queue: a.queue, Plugins: a.plugins, Secrets: a.secrets.Of, Seal: a.secrets.Sealer, Events: a.events.Add, Owners: a.owners, Halt: a.halt, Guards: a.dirs, Cluster: a.sharedVolumes(), Allowed: a.c.Cluster.Allows, Node: a.node.ID,
		Controllers: a.controllers(),
	})

	a.classes = classes.New(classes.Options{
		Dir: a.c.ClassesDir, Node: a.node.ID, Plugins: a.plugins, Log: a.log.Named("classes"),
	})
	a.classes.Reload()

	a.files = volumefiles.New(volumefiles.Options{
		Dir: a.c.VolumesDir, Register: a.volumes.Register, View: a.plugins.View, Log: a.log.Named("files"),
	})

	a.claims = &claim.Service{
		Store: a.db, Queue: a.queue, Plugins: a.plugins, Paths: steps, Places: a.dirs, Owners: a.owners, Halt: a.halt, Down: a.down, Coming: a.files.Await, Fetch: a.fetchShared(), Leaving: a.leaving(), Events: a.events.Add,
		Private: []string{a.c.DataDir, a.c.RuntimeDir, a.c.Socket, a.c.PluginDir},
	}

	a.reaper = claim.NewReaper(a.claims, a.db, a.owners, a.log.Named("owner"))

	a.tests = &plugintest.Service{
		Plugins: plugins.Tested{Set: a.plugins}, Records: plugins.TestRecords{Supervisor: a.plugins.Supervisor, Usage: a.plugins.Usage}, Host: plugins.TestHost{Host: a.host, Root: a.c.MountRoot()}, Paths: steps,
		Secrets: a.secrets.Of, Events: a.events.Add, Ended: a.plugins.Released, Halt: a.halt,
	}

	a.changes.subscribe(func(c supervisor.Change) {
		if c.View.Ready {
			a.queue.PluginChanged(c.Plugin)
			a.files.Retry()
		}
	})

	a.volumeEvents.subscribe(func(evs []volume.Event) {
		for _, e := range evs {
			if e.Type == volume.EventClaimDetached {
				a.reaper.Freed()
			}
		}
	})

	return nil
}

// begun returns the ids of the volumes that have unfinished snapshots.
func (a *Agent) begun() (ids []string) {
	for _, s := range statedb.Snapshots.All(a.db) {
		ids = append(ids, s.Volumes...)
	}
	return ids
}

// tellVolumes stores the events of volumes. When a claim has ended, it informs the supervisor,
// because a change of the plugin may wait for the end of the claim. It starts to watch each new
// mount that owns a claim.
func (a *Agent) tellVolumes(evs []volume.Event) {
	a.events.Add(evs...)
	for _, e := range evs {
		switch e.Type {
		case volume.EventBound:
			r, _ := a.db.Volume(e.Volume)
			if c := r.Claims[e.Alloc]; c.Wanted && c.Owner.Kind == volume.OwnerMount {
				a.owners.Watch(c.Keeper())
			}
		case volume.EventClaimDetached:
			a.plugins.Released(e.Plugin)
		}
	}
}

// leftoverUndone deletes the record of a forced deregister when the leftovers have been undone. It
// returns the id of a volume that may have waited for the end of the leftovers.
func (a *Agent) leftoverUndone(r volume.Record) (waiting string) {
	waiting = a.dirs.DropLeftover(r, a.log)
	a.plugins.Released(r.Volume.PluginID)
	return waiting
}

// connectServers creates the services that describe the host, and the servers that give access to
// all services.
func (a *Agent) connectServers(context.Context) (err error) {
	a.scraped = a.newScraped()
	a.status = &status.Service{
		NodeID: a.node.ID, DataDir: a.c.DataDir, MetricsAddress: a.c.MetricsAddress, Halt: a.halt, Started: a.started,
		Records: a.db, Plugins: a.plugins, Queue: a.queue, Tests: a.tests, Files: a.files, Classes: a.classes, Volumes: a.volumes, Host: a.host, Scraped: a.scraped,
		Cluster: a.clusterStatus,
	}

	a.metrics.Collect(metrics.Options{
		Cluster: a.clusterMetrics(),
		Version: api.Version, Started: a.started, Records: a.db.Volumes, Attempt: a.queue.Last,
		Plugins: a.status.PluginMetrics, Reports: a.status.ReportMetrics, Host: a.status.HostMetrics,
	})

	if a.group, err = listen.GroupID(a.c.SocketGroup); err != nil {
		return err
	}

	// The doctor also examines the volumes of docker and podman.
	a.runtimes = &dockervol.Service{
		Store: records.Runtimes{Store: a.db}, Claims: a.claims, Plugins: a.plugins,
		Containers: runtimeCommands{a.plugins.Outside}, Mounts: a.host, Size: bytesize.ParseDocker, Remapped: dockervol.RemappedRoot, Patience: patience,
		Events: a.events.Add, Log: a.log.Named("runtime"), Fetch: a.fetchForRuntimes,
	}
	a.drainer = &drain.Service{
		Store: records.Draining{WithLeftovers: records.WithLeftovers{Store: a.db}}, Claims: a.claims, Queue: a.queue, Owners: a.owners, Events: a.events.Add, Halt: a.halt, Strays: a.status.Strays,
		Changed: a.drainChanged,
	}
	requests := service.New(service.Options{
		Claims: a.claims, Volumes: a.volumes, Storage: a.volumes, Snapshots: a.volumes, Records: records.Living{Store: a.db, Owners: a.owners}, Queue: a.queue, Plugins: a.plugins, Owners: a.owners,
		Tests: a.tests, Classes: a.classes, Events: a.events, Node: a.status.Node, Self: a.node.ID, Overview: a.overview(),
		State: &backup.Service{
			DB: a.db, Node: a.node, Halt: a.halt, Plugins: a.plugins, Secrets: a.secrets.Of, Owners: a.owners, Queue: a.queue, Reaper: a.reaper, Events: a.events.Add,
		},
		Drainer: a.drainer, Mover: a.mover(),
		Doctor: facts.NewDoctor(facts.Options{
			Root: a.c.MountRoot(), StateFile: a.c.StateFile(), Halt: a.halt, OtherDataDir: a.otherDataDir, Serving: a.c.DockerSocket != "",
			DB: a.db, Host: a.host, Dirs: a.dirs, Owners: a.owners, Queue: a.queue, Plugins: a.plugins, Tests: a.tests, Systemd: a.systemd, Containers: a.runtimes, Cluster: a.clusterFacts(),
			VolumeFiles: a.files.Problems, ClassFiles: a.classes.Problems, MetricsAddress: a.status.Unscraped,
		}),
	})
	a.runtimes.Volumes = requests.Volumes
	a.runtimeServer, a.sharedServer = dockervol.NewServer(a.runtimes), dockervol.NewSharedServer(a.runtimes)
	a.server = apiserver.New(apiserver.Options{Service: requests, Metrics: a.metrics, MayWrite: listen.Allowed(a.group), Log: a.log.Named("api")})

	return nil
}

// newScraped returns a server for metrics on a TCP address, or nil if no address is configured.
func (a *Agent) newScraped() *metrics.Server {
	if a.c.MetricsAddress == "" {
		return nil
	}

	log := a.log.Named("metrics")
	tcp := listen.TCP{Dir: a.c.RuntimeDir, Args: []string{lendCommand}, Outside: a.plugins.Outside}
	return metrics.NewServer(metrics.ServerOptions{
		Address: a.c.MetricsAddress, Listen: tcp.Open, Write: a.metrics.Write,
		Listening: func(at net.Addr) {
			log.Info("anyone who reaches the address can read the metrics", "address", at.String())
		},
		Failed: func(err error) {
			log.Error("cannot serve the metrics; it is tried again every 5s", "address", a.c.MetricsAddress, "error", err)
		},
		Log: log,
	})
}

// These are the modes of the sockets. The socket's group may use the API socket.
const (
	apiMode     = 0o660
	runtimeMode = 0o600
)

// openSockets opens the sockets for the API and for container runtimes, or takes them from systemd.
func (a *Agent) openSockets(context.Context) (err error) {
	passed := listen.Inherit(a.log)
	defer passed.Close(a.log)

	if a.c.DockerSocket != "" {
		if a.runtimeSocket, err = passed.Open(a.c.DockerSocket, 0, runtimeMode); err != nil {
			return fmt.Errorf("cannot serve docker and podman at docker_socket: %w", err)
		}
	}
	if path := a.c.SharedDockerSocket(); path != "" {
		if a.sharedSocket, err = passed.Open(path, 0, runtimeMode); err != nil {
			return fmt.Errorf("cannot serve shared volumes to docker and podman beside docker_socket: %w", err)
		}
	}

	a.socket, err = passed.Open(a.c.Socket, a.group, apiMode)
	return err
}
