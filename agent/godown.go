package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/volmgr/volume"
)

// These limits bound the shutdown of the host. Together with the limits of a stop, they stay below
// goDownNeeds, the time that the agent requests from systemd.
const (
	downWithin  = 30 * time.Second // unmounting all volumes
	pullWithin  = time.Second      // until hanging calls are abandoned
	endWithin   = 12 * time.Second // ending plugins; each is killed after 10 s
	goDownNeeds = 60 * time.Second
)

// goesDown reports whether the agent is stopping because the host is shutting down. If systemd does
// not answer, it returns false. The agent then stops alone, and leaves mounts and plugins in place.
func (a *agent) goesDown() (down bool) {
	if a.halt != "" {
		return false // this agent does not see the mounts
	}

	within(answerWithin, func(ctx context.Context) {
		var err error
		if down, err = a.systemd.GoesDown(ctx); err != nil {
			a.log.Debug("cannot ask whether this host is going down", "error", err)
		}
	})

	return down
}

// beginStop announces the stop and, if the host is shutting down, unmounts the volumes. It returns
// the text of the last event, and how long running steps may take.
func (a *agent) beginStop(down bool) (last string, patience time.Duration) {
	if down {
		a.goDown()
		return "this host is going down", pullWithin
	}

	notify(a.log, daemon.SdNotifyStopping)
	a.log.Info("stopping; plugins and mounts stay")
	return "plugins and mounts stay", stepWithin
}

// goDown unmounts the volumes. The API stays available for users who unmount their own volumes, but
// refuses claims.
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

// leftover explains why a volume is still on the host.
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

// endPlugins ends the plugins that the agent runs. Plugins with mounted volumes stay until the host
// ends, because the processes that use these volumes are still running.
func (a *agent) endPlugins() {
	used := map[string]bool{}
	for _, r := range (records.WithLeftovers{Store: a.db}).Volumes() {
		used[r.Volume.PluginID] = used[r.Volume.PluginID] || r.OnHost()
	}
	within(endWithin, func(ctx context.Context) {
		a.plugins.End(ctx, func(id string) bool { return used[id] })
	})
}
