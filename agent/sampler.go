package agent

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/volume"
)

// sampler asks plugins how their mounted volumes are, for the metrics. Each plugin has a turn of
// its own, so that one that hangs delays no other, and within a plugin the volumes follow each
// other. A volume that has a call in hand is left out until the next turn.
type sampler struct {
	every   time.Duration // between two turns of a plugin that has no interval of its own; 0 is never
	volumes func() []volume.Record
	view    func(pluginID string) volume.PluginView
	busy    func(volume.Record) bool
	report  func(ctx context.Context, id string) error
	log     hclog.Logger

	turns sync.WaitGroup
	mu    sync.Mutex
	asked map[string]bool // plugins whose turn is under way
}

// samplerLook is the longest time after which a newly mounted volume gets a plugin its turns.
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

// run gives plugins their turns until ctx ends.
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

// schedule begins the turns that are due, and returns how long it is to the next one. The first
// turn of a plugin comes at a random moment of its interval, and the others vary by a tenth, so
// that many hosts do not ask one storage system at once.
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

// interval is how often a plugin is asked; 0 is never.
func (s *sampler) interval(pluginID string) time.Duration {
	if own := s.view(pluginID).StatsInterval; own != nil {
		return *own
	}
	return s.every
}

// mounted returns the ids of the volumes that somebody uses, by plugin.
func (s *sampler) mounted() map[string][]string {
	by := map[string][]string{}
	for _, r := range s.volumes() {
		if published(r) {
			by[r.Volume.PluginID] = append(by[r.Volume.PluginID], r.Volume.ID)
		}
	}
	return by
}

// begin asks a plugin about its volumes, unless the turn before has not ended.
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
