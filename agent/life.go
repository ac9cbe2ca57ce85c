package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/process"
	"github.com/volagent/volagent/volmgr/volume"
)

// These constants limit the last steps of a shutdown. The constants in serve.go limit the earlier
// steps.
const (
	tasksWithin  = 1500 * time.Millisecond // the limit for background tasks to end
	eventsWithin = time.Second             // the limit for storing the events of the shutdown
)

// Open opens the state and the sockets. The agent does nothing with volumes and plugins until Run
// starts.
func (a *Agent) Open(ctx context.Context) (err error) {
	ctx = context.WithoutCancel(ctx) // a signal ends the agent only after the start is complete
	process.LoadingMemory()
	for _, step := range []func(context.Context) error{a.openState, a.recall, a.connectPlugins, a.connectVolumes, a.connectServers, a.openSockets} {
		if err := step(ctx); err != nil {
			return err
		}
	}

	return nil
}

// Run runs until ctx ends. It then refuses new calls, starts no new steps, and makes the last
// commit. If the host is shutting down, Run first unmounts the volumes and ends the plugins.
func (a *Agent) Run(ctx context.Context) error {
	a.events.Add(volume.Event{Type: volume.EventAgentStarted, Message: "volagent " + api.Version})
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()

	var wg sync.WaitGroup
	failed := make(chan error, 3)
	a.begin(running, &wg, failed)

	a.log.Info("ready", "version", api.Version, "node", a.node.ID, "data_dir", a.c.DataDir, "socket", a.c.Socket)
	if a.halt != "" {
		a.log.Error("no call is sent to any plugin", "reason", a.halt)
	}
	a.notifyReady()

	err := a.wait(ctx, failed)
	last := a.stop(err == nil)
	cancel()
	if !process.Ends(&wg, tasksWithin) {
		a.log.Error("a task of the agent did not end; the agent ends without it", "waited", tasksWithin)
	}
	a.events.Add(volume.Event{Type: volume.EventAgentStopped, Message: last})
	return err
}

// Close closes the sockets, the connections and the state after Run has returned or Open has
// failed. Plugins keep running, and mounts remain.
func (a *Agent) Close() (err error) {
	for _, l := range []net.Listener{a.socket, a.runtimeSocket, a.sharedSocket} {
		if l == nil {
			continue
		}
		// Ignore ErrClosed, because a server closes its listener when it stops.
		if cerr := l.Close(); !errors.Is(cerr, net.ErrClosed) {
			err = errors.Join(err, cerr)
		}
	}

	if a.owners != nil {
		err = errors.Join(err, a.owners.Close())
	}
	if a.systemd != nil {
		a.systemd.Close()
	}
	if a.clusterStore != nil {
		err = errors.Join(err, a.clusterStore.Close())
	}
	if a.events != nil {
		process.Within(eventsWithin, a.events.Close)
	}
	if a.db.DB != nil {
		err = errors.Join(err, a.db.Close())
	}

	return err
}

// run runs an agent until ctx ends. It starts the configured plugins and services, and continues
// the work on each volume from the recorded state. When run returns, plugins and mounts remain.
func run(ctx context.Context, fl *pflag.FlagSet, stderr io.Writer, seams Seams) error {
	a, err := New(fl, stderr, seams)
	if err == nil {
		err = makeRuntimeDir(a.c.RuntimeDir)
	}
	failed := process.OpenStartError(a.c.Socket)
	defer failed.Close()

	if err == nil {
		err = a.Open(ctx)
	}
	if err != nil {
		failed.Write(err, a.log)
		return errors.Join(err, a.Close())
	}

	return errors.Join(a.Run(ctx), a.Close())
}

func makeRuntimeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cannot make the runtime dir: %w", err)
	}
	return nil
}
