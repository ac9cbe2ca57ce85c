package agent

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/volume"
)

// sampler asks plugins for reports on their mounted volumes, for the metrics. Each plugin has its
// own turns, so that a plugin that hangs does not delay others. In a turn the plugin's volumes are
// asked about one after the other. A volume with a running call is skipped until the next turn.
type sampler struct {
	every   time.Duration // between two turns of a plugin without an interval of its own; 0 means never
	volumes func() []volume.Record
	view    func(pluginID string) volume.PluginView
	busy    func(volume.Record) bool
	report  func(ctx context.Context, id string) error
	log     hclog.Logger

	turns sync.WaitGroup
	mu    sync.Mutex
	asked map[string]bool // plugins whose turn is running
}

// samplerLook is the longest time until a plugin with a newly mounted volume gets its first turn
// scheduled.
const samplerLook = time.Minute

func (a *agent) newSampler(every time.Duration) *sampler {
	return &sampler{
		every: every, volumes: a.db.Volumes, view: a.plugins.View, log: a.log, asked: map[string]bool{},
		busy: func(r volume.Record) bool {
			at := a.queue.Last(r)
			return at != nil && at.Running
		},
		report: func(ctx context.Context, id string) error {
			_, err := a.volumes.Report(ctx, id, 0, false)
			return err
		},
	}
}

// run schedules turns until ctx ends.
func (s *sampler) run(ctx context.Context) {
	defer s.turns.Wait()
	due := map[string]time.Time{}
	for {
		wait := s.schedule(ctx, due)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// schedule starts the samples that are due, and returns the time until the next one. The agent takes
// the first sample of a plugin at a random point in its interval, and later intervals vary by 10 %.
// So many hosts do not query one storage system at the same time.
func (s *sampler) schedule(ctx context.Context, due map[string]time.Time) time.Duration {
	now := time.Now()
	next := samplerLook
	mounted := s.mounted()

	for id := range due {
		if mounted[id] == nil {
			delete(due, id)
		}
	}

	for id, volumes := range mounted {
		every := s.interval(id)
		if every == 0 {
			delete(due, id)
			continue
		}

		at, known := due[id]
		switch {
		case !known:
			at = now.Add(rand.N(every))
		case !at.After(now):
			s.begin(ctx, id, volumes)
			at = now.Add(every*9/10 + rand.N(every/5))
		}

		due[id] = at
		next = min(next, at.Sub(now))
	}

	return max(next, time.Second)
}

// interval returns the time between two turns of a plugin; 0 means never.
func (s *sampler) interval(pluginID string) time.Duration {
	if own := s.view(pluginID).StatsInterval; own != nil {
		return *own
	}
	return s.every
}

// mounted returns the ids of the mounted volumes, by plugin.
func (s *sampler) mounted() map[string][]string {
	by := map[string][]string{}
	for _, r := range s.volumes() {
		if published(r) {
			by[r.Volume.PluginID] = append(by[r.Volume.PluginID], r.Volume.ID)
		}
	}

	return by
}

// begin asks a plugin about its volumes, unless its previous turn is still running.
func (s *sampler) begin(ctx context.Context, pluginID string, ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.asked[pluginID] {
		return
	}

	s.asked[pluginID] = true
	s.turns.Go(func() {
		s.turn(ctx, ids)
		s.mu.Lock()
		delete(s.asked, pluginID)
		s.mu.Unlock()
	})
}

func (s *sampler) turn(ctx context.Context, ids []string) {
	now := map[string]volume.Record{}
	for _, r := range s.volumes() {
		now[r.Volume.ID] = r
	}
	for _, id := range ids {
		if ctx.Err() != nil {
			return
		}
		if s.busy(now[id]) {
			continue
		}

		if err := s.report(ctx, id); err != nil {
			s.log.Debug("cannot ask how a volume is", "volume", id, "error", err)
		}
	}
}

// published reports whether a volume is mounted for a claim.
func published(r volume.Record) bool {
	for _, c := range r.Claims {
		if c.Published == volume.Present {
			return true
		}
	}

	return false
}
