package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/volagent/volagent/volmgr/volume"
)

// Bounds of what is done when the host goes down. Together with those of a stop they
// are below the time that systemd is asked for.
const (
	downWithin  = 30 * time.Second // volumes leave the host
	pullWithin  = time.Second      // calls that hang are given up
	endWithin   = 12 * time.Second // plugins end; each is killed after 10 s
	goDownNeeds = 60 * time.Second
)

// goesDown reports whether the agent is being stopped because the host goes down. No
// answer is taken for a stop of the agent alone, which leaves everything as it is.
func (a *agent) goesDown() (down bool) {
	if a.halt != "" {
		return false // what is mounted is not in this agent's sight
	}
	within(answerWithin, func(ctx context.Context) {
		var err error
		if down, err = a.systemd.GoesDown(ctx); err != nil {
			a.log.Debug("cannot ask whether this host is going down", "error", err)
		}
	})
	return down
}

// beginStop says that the agent stops and, where the host goes down, takes volumes off
// it. It returns what its last event says, and how long the steps in hand may take.
func (a *agent) beginStop(down bool) (last string, patience time.Duration) {
	if down {
		a.goDown()
		return "this host is going down", pullWithin
	}
	notify(a.log, daemon.SdNotifyStopping)
	a.log.Info("stopping; plugins and mounts stay")
	return "plugins and mounts stay", stepWithin
}

// goDown takes volumes off the host. The API goes on meanwhile, for those who unmount
// theirs; claims are refused.
func (a *agent) goDown() {
	notify(a.log, fmt.Sprintf("%s\nEXTEND_TIMEOUT_USEC=%d\nSTATUS=unmounting, because this host is going down", daemon.SdNotifyStopping, goDownNeeds.Microseconds()))
	a.log.Info("this host is going down; volumes are unmounted, and claims without an owner stay")
	a.events.Add(volume.Event{Type: "host-going-down", Message: "volumes are unmounted, and claims without an owner stay"})
	close(a.down)
	within(downWithin, func(ctx context.Context) {
		for _, r := range a.queue.GoDown(ctx) {
			a.log.Warn("a volume stays on this host, which goes down", "volume", r.Volume.ID, "reason", a.leftover(r))
		}
	})
}

// leftover says why a volume could not be taken off the host, and who holds it.
func (a *agent) leftover(r volume.Record) string {
	switch at := a.queue.Last(r); {
	case at == nil:
		return "it was not its turn yet"
	case at.Err != nil:
		return at.Err.Error()
	case at.Action.Reason != "":
		return at.Action.Reason
	default:
		return fmt.Sprintf("%s has not answered for %s", at.Action.Kind, time.Since(at.First).Round(time.Second))
	}
}

// endPlugins ends the plugins that the agent runs, but for those through which
// something is still mounted: they end with the host, and not before those who use it.
func (a *agent) endPlugins() {
	used := map[string]bool{}
	for _, r := range (queueStore{a.db}).Volumes() {
		used[r.Volume.PluginID] = used[r.Volume.PluginID] || r.OnHost()
	}
	within(endWithin, func(ctx context.Context) {
		a.plugins.End(ctx, func(id string) bool { return used[id] })
	})
}
