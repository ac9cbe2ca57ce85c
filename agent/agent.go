// Package agent wires volagent together. It reads the configuration, opens the state database, and
// gives each package below it the implementations of that package's interfaces. Only the binary and
// the main functions of tests import it.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiserver"
	"github.com/volagent/volagent/agent/backup"
	"github.com/volagent/volagent/agent/claim"
	"github.com/volagent/volagent/agent/event"
	"github.com/volagent/volagent/agent/identity"
	"github.com/volagent/volagent/agent/listen"
	"github.com/volagent/volagent/agent/metrics"
	"github.com/volagent/volagent/agent/notes"
	"github.com/volagent/volagent/agent/owndir"
	"github.com/volagent/volagent/agent/owner"
	"github.com/volagent/volagent/agent/plugins"
	"github.com/volagent/volagent/agent/plugintest"
	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/agent/reconcile"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/agent/secret"
	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/agent/volumefiles"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// Seams are two points at which a test can observe or change the agent's behaviour. The binary sets
// neither.
type Seams struct {
	// Tap is called around each commit of the state database.
	Tap func(statedb.Point)
	// Interceptor wraps each call to a plugin.
	Interceptor grpc.UnaryClientInterceptor
}

// These limits bound a shutdown. Their sum is below the 10 s that an operator waits, and below the
// 15 s that systemd waits.
const (
	answerWithin = 2 * time.Second         // running API calls
	tasksWithin  = 1500 * time.Millisecond // background tasks that were told to end
	stepWithin   = 5 * time.Second         // the current step of each volume
	eventsWithin = time.Second             // the events of the shutdown
)

// These are the modes of the sockets. The group of the API socket may use it.
const (
	apiMode     = 0o660
	runtimeMode = 0o600
)

// agent is one running agent.
type agent struct {
	c    Config
	log  hclog.Logger
	db   records.Store
	node statedb.Node
	halt string

	// otherDataDir is the data dir of another agent, if that is the reason for halt.
	otherDataDir string
	damage       string // the damage of the state database that this agent moved aside
	started      time.Time

	events  *event.Log
	systemd *systemd.Bus
	usage   plugins.Usage
	plugins plugins.Set
	tests   *plugintest.Service
	owners  *owner.Watcher
	volumes *provision.Service
	files   *volumefiles.Files
	reaper  *claim.Reaper
	queue   *reconcile.Queue

	server  *apiserver.Server
	metrics *metrics.Metrics
	scraped *metrics.Server // nil without a metrics_address
	secrets secret.Resolver
	socket  net.Listener
	dirs    owndir.Dirs
	down    chan struct{} // closed when the host begins to shut down

	runtimes runtimes
}

// Run runs the agent until ctx ends. It starts the configured plugins and services, and continues
// with every volume from its recorded state. When it ends, plugins and mounts stay.
func Run(ctx context.Context, fl *pflag.FlagSet, stderr io.Writer, seams Seams) error {
	c, err := loadConfig(fl)
	a := &agent{c: c, log: c.logger(stderr), started: time.Now().UTC(), down: make(chan struct{})}
	if err == nil {
		err = makeRuntimeDir(c.RuntimeDir)
	}
	failed := openStartError(c.Socket)
	defer failed.close()
	if err == nil {
		loadingMemory()
		err = a.open(ctx, seams)
	}

	if err != nil {
		failed.write(err, a.log)
		return err
	}

	a.events = a.openEvents()
	a.secrets = a.newSecrets()
	if err = a.wire(seams); err != nil {
		failed.write(err, a.log)
	} else {
		err = a.serve(ctx, fl)
	}

	if a.owners != nil {
		err = errors.Join(err, a.owners.Close())
	}
	if a.systemd != nil {
		a.systemd.Close()
	}
	within(eventsWithin, a.events.Close)
	return errors.Join(err, a.db.Close())
}

func makeRuntimeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cannot make the runtime dir: %w", err)
	}
	return nil
}

// open creates the directories and opens the files that only one agent may use.
func (a *agent) open(ctx context.Context, seams Seams) (err error) {
	// The user of a service must be able to traverse these directories to its volume.
	for _, dir := range []string{a.c.DataDir, a.c.mountRoot()} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("cannot make the data dir: %w", err)
		}
	}

	// On a read-only data dir, the mode stays as the last agent set it.
	if err := os.Chmod(a.c.DataDir, 0o711); err != nil && !errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("cannot open the data dir to the users of volumes: %w", err)
	}

	db, damage, err := backup.Open(a.c.stateFile(), statedb.Options{Tap: seams.Tap, Warn: func(message string) { a.log.Error(message) }}, a.log)
	if err != nil {
		return err
	}

	a.db, a.damage = records.Store{DB: db}, damage
	if err := db.Fault(); err != nil {
		a.log.Error("the state database cannot be written: nothing can be claimed or changed; claims can be detached, which is kept only in memory. Mount the data dir for writing", "error", err)
	}
	if err := db.NoLog(); err != nil {
		a.log.Warn("cannot open state.log; every claim now waits for a disk sync. Remove the file in its place and restart the agent", "path", filepath.Join(a.c.DataDir, "state.log"), "error", err)
	}

	return nil
}

// wire builds everything between the state database and the socket.
func (a *agent) wire(seams Seams) error {
	ctx := context.Background()
	host, err := mount.New()
	if err != nil {
		return err
	}

	was, unfinished := a.db.Node(), begun(a.db.Snapshots())
	if err := a.recall(ctx, host); err != nil {
		return err
	}

	identity.WarnUnshared(host, a.c.mountRoot(), a.log)
	a.c.warnLong(a.log)
	a.metrics = a.newMetrics()
	a.systemd = systemd.New(systemd.Options{Log: a.log.Named("systemd")})
	a.usage = plugins.Usage{Records: a.db, Secrets: a.secrets}
	a.plugins = plugins.Set{Usage: a.usage, Halt: a.halt}
	if a.plugins.Supervisor, err = a.newSupervisor(seams, host); err != nil {
		return err
	}
	a.scraped = a.newScraped()

	owners := owner.New(owner.Options{Boot: host.Boot(), Log: a.log.Named("owner"), Bus: a.systemd, Mounts: host, References: a.db.References})
	if err := owners.Open(); err != nil {
		return err
	}

	a.owners = owners
	steps := volmgr.New(volmgr.Options{Root: a.c.mountRoot(), Host: host, Plugin: a.plugins.ForStep, Secrets: a.secrets.Of})
	a.dirs = owndir.Dirs{Manager: steps, Records: a.db}
	if was.Boot != "" && was.Boot != a.node.Boot {
		a.dirs.Tidy(a.log)
	}
	if a.halt == "" {
		a.dirs.RepairModes(ctx, a.log)
	}

	a.queue = reconcile.New(reconcile.Options{
		Store: records.WithLeftovers{Store: a.db}, Plugins: a.plugins, Host: steps, Halt: a.halt,
		Events: a.volumeEvents, Log: a.log.Named("volume"),
		Blocked: a.db.PendingFor, Undone: a.leftoverUndone, Crashed: was.ID != "" && identity.Ended(was, a.node) == volume.Crashed, Begun: unfinished,
	})

	gid, err := listen.GroupID(a.c.SocketGroup)
	if err != nil {
		return err
	}

	claims := &claim.Service{
		Store: a.db, Queue: a.queue, Plugins: a.plugins, Paths: steps, Places: a.dirs, Owners: a.owners, Halt: a.halt, Down: a.down, Events: a.events.Add,
		Private: []string{a.c.DataDir, a.c.RuntimeDir, a.c.Socket, a.c.PluginDir},
	}

	a.tests = a.newTests(host, steps)
	a.reaper = claim.NewReaper(claims, a.db, a.owners, a.log.Named("owner"))
	a.volumes = &provision.Service{
		Store: records.Provisioning{Store: a.db}, Queue: a.queue, Plugins: a.plugins, Secrets: a.secrets.Of, Seal: a.secrets.Sealer, Events: a.events.Add, Owners: a.owners, Halt: a.halt, Guards: a.dirs,
	}
	a.files = volumefiles.New(volumefiles.Options{
		Dir: a.c.VolumesDir, Register: a.volumes.Register, Convert: apiserver.Volume, View: a.plugins.View, Log: a.log.Named("files"),
	})
	claims.Coming = a.files.Await

	a.server = apiserver.New(apiserver.Options{
		Claims: claims, Volumes: a.volumes, Snapshots: a.volumes, Drainer: a.newDrain(claims, host),
		State: &backup.Service{
			DB: a.db, Node: a.node, Halt: a.halt, Plugins: a.plugins, Secrets: a.secrets.Of, Owners: a.owners, Queue: a.queue, Reaper: a.reaper, Events: a.events.Add,
		},
		Records: records.Living{Store: a.db, Owners: a.owners}, Queue: a.queue, Plugins: a.plugins, Tests: tested{a.tests}, Owners: a.owners, Events: apiEvents{a.events}, Metrics: a.metrics,
		Doctor: examiner{a.newDoctor(host, steps)}, Node: a.describe, MayWrite: listen.Allowed(gid), Log: a.log.Named("api"),
	})

	passed := listen.Inherit(a.log)
	defer passed.Close(a.log)

	if a.runtimes, err = a.newRuntimes(claims, host, passed); err != nil {
		return err
	}

	a.socket, err = passed.Open(a.c.Socket, gid, apiMode)
	return err
}

// recall loads the state from before: the volumes, the identity of this host, and whether calls are
// allowed.
func (a *agent) recall(ctx context.Context, host *mount.Host) (err error) {
	was, steps := a.db.Node(), volmgr.New(volmgr.Options{Root: a.c.mountRoot(), Host: host})
	a.node = was
	adoption := backup.Adoption{DB: a.db, Steps: steps, Host: host, DataDir: a.c.DataDir, Damage: a.damage, Events: a.events.Add, Log: a.log}
	var lostID string
	if a.halt, lostID, err = adoption.Run(ctx); err != nil {
		return err
	}
	if a.halt != "" {
		a.node.ID = lostID
	}

	if a.halt == "" {
		e, err := identity.ClaimRuntimeDir(ctx, a.c.dirs(), was.DataDir, host, a.log)
		if err != nil {
			return err
		}
		if !e.Empty() {
			a.otherDataDir, a.halt = e.DataDir, e.Said()
		}
	}

	if a.halt == "" {
		if a.node, a.halt, err = identity.Identify(a.db, a.c.NodeID, a.c.DataDir, host); err != nil {
			return err
		}
	}

	a.db.Notes = notes.New(notes.Options{Records: a.db.DB, Files: steps, NodeID: a.node.ID, DataDir: a.c.DataDir, Log: a.log})
	if a.halt != "" {
		return nil // no work is done, so the records do not change
	}

	switch err := a.db.Reload(ctx, a.node, identity.Ended(was, a.node)); {
	case err == nil:
		return nil
	case was.ID == "":
		return err
	default:
		// On a full disk the agent starts all the same, because it can still report the problem and
		// detach claims.
		a.log.Error("cannot note who this host is in this boot", "error", err)
		return nil
	}
}

// serve runs until ctx ends, then stops in order: no new calls, no new steps, the last commit. If
// the host is shutting down, it first unmounts the volumes and ends the plugins.
func (a *agent) serve(ctx context.Context, fl *pflag.FlagSet) error {
	a.events.Add(volume.Event{Type: "agent-started", Message: "volagent " + api.Version})
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()

	var wg sync.WaitGroup
	failed := make(chan error, 3)
	background := func(fn func() error) {
		wg.Go(func() {
			if err := fn(); err != nil {
				failed <- err
			}
		})
	}

	background(func() error { return a.server.Serve(a.socket) })
	if a.runtimes.socket != nil {
		background(func() error { return a.runtimes.server.Serve(a.runtimes.socket) })
	}
	if a.halt == "" { // in halt, plugins would mount where other processes do not see the mounts
		// Detach the claims whose owners ended while no agent ran, before anything is mounted for
		// them.
		a.reaper.Pass(running)
		wg.Go(func() { a.reaper.Run(running) })
		wg.Go(func() { a.runtimes.service.Run(running) })
		wg.Go(func() { a.warnDeadlocks(running) })
		background(func() error { return a.plugins.Run(running) })
		wg.Go(func() { a.db.Notes.Complete(running) })
		wg.Go(func() { plugins.RecoverTests(running, a.usage, a.tests, a.log) })
		wg.Go(func() { a.files.Run(running) })
		if every, err := a.c.statsInterval(); err == nil { // check has validated it
			wg.Go(func() { a.newSampler(every).run(running) })
		}
	}

	if a.scraped != nil {
		wg.Go(func() { a.scraped.Run(running) })
	}
	wg.Go(func() { tendMemory(running) })
	wg.Go(func() { watchdog(running, a.log, func() bool { a.db.Node(); return true }) })
	a.queue.Start()

	a.log.Info("ready", "version", api.Version, "node", a.node.ID, "data_dir", a.c.DataDir, "socket", a.c.Socket)
	if a.halt != "" {
		a.log.Error("no call is sent to any plugin", "reason", a.halt)
	}
	notify(a.log, daemon.SdNotifyReady+"\nSTATUS="+a.status())

	err := a.wait(ctx, fl, failed)
	down := err == nil && a.goesDown()
	last, patience := a.beginStop(down)

	within(answerWithin, func(ctx context.Context) {
		if err := a.server.Close(ctx); err != nil {
			a.log.Warn("cannot close the API socket", "error", err)
		}
		if err := a.runtimes.server.Close(ctx); err != nil {
			a.log.Warn("cannot close the socket of docker and podman", "error", err)
		}
	})

	within(patience, a.stopQueue)
	if down {
		a.endPlugins()
	}
	cancel()
	a.awaitTasks(&wg)
	a.events.Add(volume.Event{Type: "agent-stopped", Message: last})
	return err
}

// stopQueue ends all steps, and records whether they all ended in time.
func (a *agent) stopQueue(ctx context.Context) {
	if !a.queue.Stop(ctx) || a.halt != "" {
		return
	}
	if err := a.db.MarkStopped(context.WithoutCancel(ctx)); err != nil {
		a.log.Warn("cannot record that the agent stopped in order; the next one takes all that is unsettled for uncertain", "error", err)
	}
}

func within(d time.Duration, fn func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	fn(ctx)
}

// leftoverUndone forgets the leftovers of a forced deregister after they are undone.
func (a *agent) leftoverUndone(r volume.Record) {
	waiting := a.dirs.DropLeftover(r, a.log)
	a.plugins.Released(r.Volume.PluginID)
	if waiting != "" {
		a.queue.Wake(waiting)
	}
}

// wait returns when the agent must stop. It returns an error if a part of the agent failed.
func (a *agent) wait(ctx context.Context, fl *pflag.FlagSet, failed <-chan error) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)

	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-hup:
			notify(a.log, reloading())
			a.reload(fl)
			notify(a.log, daemon.SdNotifyReady+"\nSTATUS="+a.status())
		}
	}
}

// reload reads the configuration and the plugin files again. It logs settings that need a restart.
// A file with a mistake changes nothing.
func (a *agent) reload(fl *pflag.FlagSet) {
	c, err := loadConfig(fl)
	if err != nil {
		a.log.Error("the configuration was not reloaded", "error", err)
		return
	}

	a.log.SetLevel(hclog.LevelFromString(c.LogLevel))
	c.LogLevel = a.c.LogLevel
	if c != a.c {
		a.log.Warn("a change of the configuration other than log_level takes effect at the next start")
	}
	if err := a.plugins.Reload(); err != nil {
		a.log.Error("the plugin files were not reloaded", "error", err)
		return
	}

	a.files.Reread()
	a.log.Info("reloaded")
}
