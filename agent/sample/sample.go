// Package sample regularly asks plugins for reports on their mounted volumes, for the metrics. In
// one turn, a Sampler asks a plugin about its volumes one after another. Each plugin has its own
// turns, so that a plugin that hangs does not delay the others. A turn skips volumes for which a
// call is already running.
package sample

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// Options are the sources of a Sampler.
type Options struct {
	// The time between two turns of a plugin that has no interval of its own. 0 means never.
	Every   time.Duration
	Volumes func() []volume.Record
	View    func(pluginID string) plugin.View
	Last    func(volume.Record) *volume.Attempt
	Report  func(ctx context.Context, id string) error
	Log     hclog.Logger
}

// Sampler asks plugins about their mounted volumes.
type Sampler struct {
	o Options

	turns sync.WaitGroup
	mu    sync.Mutex
	asked map[string]bool // ids of the plugins whose turn is running
}

// New returns a Sampler. It starts nothing.
func New(o Options) *Sampler { return &Sampler{o: o, asked: map[string]bool{}} }

// firstLook is the longest pause between two searches for plugins with newly mounted volumes.
const firstLook = time.Minute

// Run schedules turns until ctx ends.
func (s *Sampler) Run(ctx context.Context) {
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

// schedule starts the turns that are due, and returns the time until the next turn. The first turn
// of a plugin begins at a random time within its interval, and later intervals vary by 10 %.
// Otherwise, many hosts might query one storage system at the same time.
func (s *Sampler) schedule(ctx context.Context, due map[string]time.Time) time.Duration {
	now := time.Now()
	next := firstLook
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
func (s *Sampler) interval(pluginID string) time.Duration {
	if own := s.o.View(pluginID).StatsInterval; own != nil {
		return *own
	}
	return s.o.Every
}

// mounted returns the ids of the mounted volumes, by plugin.
func (s *Sampler) mounted() map[string][]string {
	by := map[string][]string{}
	for _, r := range s.o.Volumes() {
		if published(r) {
			by[r.Volume.PluginID] = append(by[r.Volume.PluginID], r.Volume.ID)
		}
	}

	return by
}

// begin asks a plugin about its volumes, unless its previous turn is still running.
func (s *Sampler) begin(ctx context.Context, pluginID string, ids []string) {
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

func (s *Sampler) turn(ctx context.Context, ids []string) {
	now := map[string]volume.Record{}
	for _, r := range s.o.Volumes() {
		now[r.Volume.ID] = r
	}
	for _, id := range ids {
		if ctx.Err() != nil {
			return
		}
		if at := s.o.Last(now[id]); at != nil && at.Running {
			continue
		}

		if err := s.o.Report(ctx, id); err != nil {
			s.o.Log.Debug("cannot ask how a volume is", "volume", id, "error", err)
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
