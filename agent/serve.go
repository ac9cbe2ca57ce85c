package agent

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/claim"
	"github.com/volagent/volagent/agent/config"
	"github.com/volagent/volagent/agent/dockervol"
	"github.com/volagent/volagent/agent/plugins"
	"github.com/volagent/volagent/agent/process"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/agent/sample"
)

// These constants limit a shutdown, together with the constants in life.go. Their sum is less than
// the 10 seconds that an operator waits, and less than the 15 seconds that systemd waits.
const (
	answerWithin = 2 * time.Second // the limit for running API calls
	stepWithin   = 5 * time.Second // the limit for the current step of each volume
	leaveWithin  = time.Second     // the limit for telling the cluster
	pullWithin   = time.Second     // replaces stepWithin when the host shuts down
)

// begin starts the servers and the background tasks. If a task that must keep running ends with an
// error, begin sends the error to failed.
func (a *Agent) begin(running context.Context, wg *sync.WaitGroup, failed chan<- error) {
	background := func(fn func() error) {
		wg.Go(func() {
			if err := fn(); err != nil {
				failed <- err
			}
		})
	}

	background(func() error { return a.server.Serve(a.socket) })
	if a.runtimeSocket != nil {
		background(func() error { return a.runtimeServer.Serve(a.runtimeSocket) })
	}
	if a.sharedSocket != nil {
		background(func() error { return a.sharedServer.Serve(a.sharedSocket) })
	}
	if a.halt == "" { // Halt means that the agent must not mount anything
		// Before any volume is mounted, detach the claims whose owners ended while no agent was
		// running.
		a.reaper.Pass(running)
		wg.Go(func() { a.reaper.Run(running) })
		wg.Go(func() { a.runtimes.Run(running) })
		wg.Go(func() { a.plugins.WarnDeadlocks(running, claim.ReapEvery, a.events.Add) })
		background(func() error { return a.plugins.Run(running) })
		wg.Go(func() { a.db.Notes.Complete(running) })
		if a.holds != nil {
			wg.Go(func() { a.holds.Run(running) })
			wg.Go(func() { a.tasks.Run(running) })
			wg.Go(func() { a.cleaner.Run(running) })
			wg.Go(func() { a.moves.Run(running) })
			wg.Go(func() { a.followEndpoints(running) })
		}
		wg.Go(func() { plugins.RecoverTests(running, a.plugins.Usage, a.tests, a.log) })
		wg.Go(func() { a.files.Run(running) })
		if every, err := a.c.SampleEvery(); err == nil { // the configuration has been validated
			wg.Go(func() { a.newSampler(every).Run(running) })
		}
	}

	if a.scraped != nil {
		wg.Go(func() { a.scraped.Run(running) })
	}
	wg.Go(func() { process.TendMemory(running) })
	wg.Go(func() { process.Watchdog(running, a.log, func() bool { a.db.Node(); return true }) })
	a.queue.Start()
}

// newSampler returns a sampler that asks plugins for the reports in the metrics.
func (a *Agent) newSampler(every time.Duration) *sample.Sampler {
	return sample.New(sample.Options{
		Every: every, Volumes: a.db.Volumes, View: a.plugins.View, Last: a.queue.Last, Log: a.log,
		Report: func(ctx context.Context, id string) error {
			_, err := a.volumes.Report(ctx, id, 0, false)
			return err
		},
	})
}

// stop ends the servers and the steps. If the host is shutting down, it also ends the plugins. It
// returns the text of the last event.
func (a *Agent) stop(inOrder bool) (last string) {
	host := &process.Shutdown{
		Halt: a.halt, Systemd: a.systemd, Queue: a.queue, Plugins: a.plugins, Records: records.WithLeftovers{Store: a.db}.Volumes, Events: a.events.Add, Down: a.down, Log: a.log,
	}
	down := inOrder && host.Coming()
	patience := stepWithin
	if down {
		last, patience = "this host is going down", pullWithin
		host.Unmount()
	} else {
		last = "plugins and mounts stay"
		process.Notify(a.log, daemon.SdNotifyStopping)
		a.log.Info("stopping; plugins and mounts stay")
	}

	process.Within(answerWithin, func(ctx context.Context) {
		if err := a.server.Close(ctx); err != nil {
			a.log.Warn("cannot close the API socket", "error", err)
		}
		for _, s := range []*dockervol.Server{a.runtimeServer, a.sharedServer} {
			if err := s.Close(ctx); err != nil {
				a.log.Warn("cannot close a socket of docker and podman", "error", err)
			}
		}
	})

	process.Within(patience, a.stopQueue)
	process.Within(leaveWithin, a.leaveCluster)
	if down {
		host.EndPlugins()
	}

	return last
}

// stopQueue stops the queue of volumes. If all steps have ended in time, it records this for the
// next agent.
func (a *Agent) stopQueue(ctx context.Context) {
	if !a.queue.Stop(ctx) || a.halt != "" {
		return
	}
	if err := a.db.MarkStopped(context.WithoutCancel(ctx)); err != nil {
		a.log.Warn("cannot record that the agent stopped in order; the next one takes all that is unsettled for uncertain", "error", err)
	}
}

// wait returns when the agent must stop. It returns an error if a background task has failed.
func (a *Agent) wait(ctx context.Context, failed <-chan error) error {
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
			process.Notify(a.log, process.Reloading())
			a.reload()
			a.notifyReady()
		}
	}
}

func (a *Agent) notifyReady() {
	process.Notify(a.log, daemon.SdNotifyReady+"\nSTATUS="+a.status.Line())
}

// reload reads the configuration and the plugin files again. It logs a warning if a changed setting
// requires a restart. If a file has a mistake, nothing changes.
func (a *Agent) reload() {
	c, err := config.Load(a.flags)
	if err != nil {
		a.log.Error("the configuration was not reloaded", "error", err)
		return
	}

	a.log.SetLevel(hclog.LevelFromString(c.LogLevel))
	c.LogLevel = a.c.LogLevel
	if a.takeEndpoints(c.Cluster) {
		c.Cluster.Endpoints = a.c.Cluster.Endpoints
	}
	if !c.Equal(a.c) {
		a.log.Warn("a change of the configuration other than log_level and the endpoints of the cluster takes effect at the next start")
	}
	if err := a.plugins.Reload(); err != nil {
		a.log.Error("the plugin files were not reloaded", "error", err)
		return
	}

	a.classes.Reload()
	a.files.Reread()
	a.log.Info("reloaded")
}
