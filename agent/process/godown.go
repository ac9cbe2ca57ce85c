package process

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/volume"
)

// These limits bound the shutdown of the host. Together with the limits of a stop, they stay below
// goDownNeeds, the time that the agent requests from systemd.
const (
	askWithin   = 2 * time.Second  // the request to systemd
	downWithin  = 30 * time.Second // unmounting all volumes
	endWithin   = 12 * time.Second // ending plugins; each is killed after 10 s
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

// Shutdown is the agent's part in the shutdown of the host.
type Shutdown struct {
	Halt    string // why this agent does not see the mounts; empty in normal operation
	Systemd Systemd
	Queue   Queue
	Plugins Plugins
	Records func() []volume.Record // returns all records, including leftover records
	Events  func(...volume.Event)
	Down    chan struct{} // Unmount closes this channel
	Log     hclog.Logger
}

// Coming reports whether the agent is stopping because the host is shutting down. If systemd does
// not answer, Coming returns false. Then only the agent stops, and the mounts and plugins stay.
func (s *Shutdown) Coming() (down bool) {
	if s.Halt != "" {
		return false // this agent does not see the mounts
	}

	Within(askWithin, func(ctx context.Context) {
		var err error
		if down, err = s.Systemd.GoesDown(ctx); err != nil {
			s.Log.Debug("cannot ask whether this host is going down", "error", err)
		}
	})

	return down
}

// Unmount unmounts the volumes. The API stays available for users who unmount their own volumes,
// but it refuses claims.
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

// reason explains why a volume is still on the host.
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

// EndPlugins ends the plugins that the agent runs. Plugins with mounted volumes keep running until
// the host is down, because the processes that use these volumes are still running.
func (s *Shutdown) EndPlugins() {
	used := map[string]bool{}
	for _, r := range s.Records() {
		used[r.Volume.PluginID] = used[r.Volume.PluginID] || r.OnHost()
	}
	Within(endWithin, func(ctx context.Context) {
		s.Plugins.End(ctx, func(id string) bool { return used[id] })
	})
}
