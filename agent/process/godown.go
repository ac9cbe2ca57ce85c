package process

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/volume"
)

// These are the time limits for the steps of a host shutdown. Together with the time limits for
// stopping the agent, they stay below goDownNeeds, which is the time that the agent requests from
// systemd.
const (
	askWithin   = 2 * time.Second  // asking systemd whether the host is shutting down
	downWithin  = 30 * time.Second // unmounting all volumes
	endWithin   = 12 * time.Second // ending the plugins; each plugin is killed after 10 s
	goDownNeeds = 60 * time.Second
)

// Systemd reports whether the host is shutting down.
type Systemd interface {
	GoesDown(ctx context.Context) (bool, error)
}

// Queue unmounts the volumes.
type Queue interface {
	GoDown(ctx context.Context) (stay []volume.Record)
	Last(r volume.Record) *volume.Attempt
}

// Plugins ends the running plugins.
type Plugins interface {
	// End ends every plugin for which used returns false.
	End(ctx context.Context, used func(pluginID string) bool)
}

// Shutdown does the agent's work when the host shuts down.
type Shutdown struct {
	Halt    string // why this agent is halted; empty in normal operation
	Systemd Systemd
	Queue   Queue
	Plugins Plugins
	Records func() []volume.Record // returns all records, including leftover records
	Events  func(...volume.Event)
	Down    chan struct{} // Unmount closes this channel
	Log     hclog.Logger
}

// Coming reports whether the agent is stopping because the host is shutting down. If systemd does
// not answer, Coming returns false. In that case only the agent stops; the mounts and plugins stay.
func (s *Shutdown) Coming() (down bool) {
	if s.Halt != "" {
		return false // a halted agent does not see the mounts of the host
	}

	Within(askWithin, func(ctx context.Context) {
		var err error
		if down, err = s.Systemd.GoesDown(ctx); err != nil {
			s.Log.Debug("cannot ask whether this host is going down", "error", err)
		}
	})

	return down
}

// Unmount unmounts the volumes. During this time, the API refuses claims, but it still serves users
// who want to unmount their own volumes.
func (s *Shutdown) Unmount() {
	Notify(s.Log, fmt.Sprintf("%s\nEXTEND_TIMEOUT_USEC=%d\nSTATUS=unmounting, because this host is going down", daemon.SdNotifyStopping, goDownNeeds.Microseconds()))
	s.Log.Info("this host is going down; volumes are unmounted, and claims without an owner stay")
	s.Events(volume.Event{Type: volume.EventHostGoingDown, Message: "volumes are unmounted, and claims without an owner stay"})
	close(s.Down)

	Within(downWithin, func(ctx context.Context) {
		for _, r := range s.Queue.GoDown(ctx) {
			s.Log.Warn("a volume stays on this host, which goes down", "volume", r.Volume.ID, "reason", s.reason(r))
		}
	})
}

// reason returns the reason why a volume is still on the host.
func (s *Shutdown) reason(r volume.Record) string {
	switch at := s.Queue.Last(r); {
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

// EndPlugins ends the plugins that the agent runs. A plugin with mounted volumes keeps running
// until the host is down, because some processes still use its volumes.
func (s *Shutdown) EndPlugins() {
	used := map[string]bool{}
	for _, r := range s.Records() {
		used[r.Volume.PluginID] = used[r.Volume.PluginID] || r.OnHost()
	}
	Within(endWithin, func(ctx context.Context) {
		s.Plugins.End(ctx, func(id string) bool { return used[id] })
	})
}
