package agent

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// sample asks plugins how the mounted volumes are, as often as the configuration
// says, for the metrics. It asks about one volume after the other: a plugin that
// hangs delays the next round and nothing else. With an interval of 0 it does not
// run, so that an idle volume costs no call.
func (a *agent) sample(ctx context.Context, every time.Duration) {
	if every <= 0 {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, r := range a.db.Volumes() {
			if ctx.Err() != nil {
				return
			}
			if !published(r) {
				continue
			}
			if _, err := a.volumes.Report(ctx, r.Volume.ID, 0, false); err != nil {
				a.log.Debug("cannot ask how a volume is", "volume", r.Volume.ID, "error", err)
			}
		}
	}
}

// published reports whether a volume is mounted for somebody.
func published(r volume.Record) bool {
	for _, c := range r.Claims {
		if c.Published == volume.Present {
			return true
		}
	}
	return false
}
