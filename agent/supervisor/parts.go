package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/volagent/volagent/agent/supervisor/definitions"
	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// parts holds the parts of all plugins.
type parts struct {
	*env

	mu      sync.Mutex
	run     context.Context // the context that was passed to start; nil before start
	workers sync.WaitGroup
	plugins map[string]*supervised   // all parts, by their keys (slots)
	byID    map[string][]*supervised // the same parts, by plugin id
	// The stored records of parts, by slot: those that load has read, and those of removed parts.
	saved map[string]plugin.Record
	// by plugin id: the channel that the next change of the plugin closes
	waiters map[string]chan struct{}
	// By slot of a removed part: the channel that is closed when the part's worker has ended.
	leaving map[string]chan struct{}
}

func newParts(e *env) *parts {
	return &parts{
		env:     e,
		plugins: map[string]*supervised{},
		byID:    map[string][]*supervised{},
		saved:   map[string]plugin.Record{},
		waiters: map[string]chan struct{}{},
		leaving: map[string]chan struct{}{},
	}
}

// load reads the stored records of all parts.
func (s *parts) load() error {
	boot, err := proc.BootID()
	if err != nil {
		return err
	}

	records, err := s.opts.Store.LoadPlugins()
	if err != nil {
		return fmt.Errorf("cannot load the plugins' records: %w", err)
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	s.boot = boot
	for _, rec := range records {
		s.saved[rec.ID] = rec
	}

	return nil
}

// held returns the definitions that are in use or were in use when the agent started, by slot.
func (s *parts) held() map[string]*plugin.Definition {
	s.mu.Lock()
	defer s.mu.Unlock()

	all := map[string]*plugin.Definition{}
	for slot, rec := range s.saved {
		if rec.Definition != nil {
			all[slot] = rec.Definition
		}
	}

	for slot, p := range s.plugins {
		if def, _ := p.definition(); def != nil {
			all[slot] = def
		} else {
			delete(all, slot)
		}
	}

	return all
}

// follow adds, changes and removes parts so that they match the definitions in wants, which are
// given by slot.
func (s *parts) follow(wants map[string]definitions.Want) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for slot, p := range s.plugins {
		if _, still := wants[slot]; !still {
			p.propose(definitions.Want{})
		}
	}

	for _, slot := range slices.Sorted(maps.Keys(wants)) {
		w := wants[slot]
		if p, known := s.plugins[slot]; known {
			p.propose(w)
		} else {
			s.add(slot, w)
		}
	}

	// A part that was in use may still run and have volumes, even if its file is gone.
	for _, slot := range slices.Sorted(maps.Keys(s.saved)) {
		if _, known := s.plugins[slot]; !known && s.saved[slot].Definition != nil {
			s.add(slot, definitions.Want{ID: s.saved[slot].Of()})
		}
	}
}

// add adds a part. If the workers of the other parts already run, add also starts the worker of the
// new part. The caller holds s.mu.
func (s *parts) add(slot string, w definitions.Want) {
	p := newPlugin(s.env, s, slot, w, s.saved[slot])
	s.plugins[slot] = p
	s.index(p.id)
	s.wakeWaiters(p.id)
	s.drive(p)
}

// start starts the workers of all parts. They run until ctx ends.
func (s *parts) start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.run != nil {
		return errors.New("the supervisor is already running")
	}

	s.run = ctx
	for _, p := range s.sorted() {
		s.drive(p)
	}

	return nil
}

// drive starts the worker of a part. The caller holds s.mu.
func (s *parts) drive(p *supervised) {
	if s.run == nil || s.run.Err() != nil || s.ends.Load() != nil {
		return
	}

	ctx, before := s.run, s.leaving[p.slot]
	s.workers.Add(1)
	go func() {
		defer s.workers.Done()
		defer close(p.over)

		if before != nil {
			// the worker of a removed part may still be cleaning up in the same directories
			<-before
		}

		drive(ctx, p)
	}()
}

// sorted returns all parts, sorted by their keys (slots). The caller holds s.mu.
func (s *parts) sorted() []*supervised {
	all := make([]*supervised, 0, len(s.plugins))
	for _, slot := range slices.Sorted(maps.Keys(s.plugins)) {
		all = append(all, s.plugins[slot])
	}
	return all
}

// driven returns all parts whose worker has been started.
func (s *parts) driven() []*supervised {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.run == nil {
		return nil
	}
	return s.sorted()
}

// all returns all parts, sorted by their keys (slots).
func (s *parts) all() []*supervised {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sorted()
}

// ids returns the ids of all plugins, sorted.
func (s *parts) ids() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.byID))
}

// of implements siblings. It returns the parts with the node part first.
func (s *parts) of(id string) []*supervised {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id]
}

// index updates the list of a plugin's parts. It makes a new slice, because a caller may still be
// using the old one. The caller holds s.mu.
func (s *parts) index(id string) {
	var all []*supervised
	for _, p := range s.plugins {
		if p.id == id {
			all = append(all, p)
		}
	}

	slices.SortFunc(all, func(a, b *supervised) int { return cmp.Compare(a.slot, b.slot) })
	if s.byID[id] = all; len(all) == 0 {
		delete(s.byID, id)
	}
}

// remove implements siblings. The remaining record of an additional controller contains no report.
// The record of any other part keeps the plugin's driver, version and capabilities.
func (s *parts) remove(p *supervised) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	p.mu.Lock()
	defer p.mu.Unlock()

	if !p.desired.Leaves() {
		return false
	}

	delete(s.plugins, p.slot)
	s.leaving[p.slot] = p.over
	s.index(p.id)
	s.saved[p.slot] = forgotten(p.record.get())
	s.wakeWaiters(p.id)
	return true
}

// notify implements siblings.
func (s *parts) notify(p *supervised) {
	s.mu.Lock()
	s.wakeWaiters(p.id)
	for _, other := range s.byID[p.id] {
		if other != p && other.waits() {
			other.poke()
		}
	}

	several := len(s.byID[p.id]) > 1
	s.mu.Unlock()
	if s.opts.OnChange == nil {
		return
	}

	g := p.look()
	c := Change{Plugin: p.id, View: g.View}
	if several {
		c.Part = g.Name()
	}

	s.opts.OnChange(c)
}

// wakeWaiters closes the channel that Changed returned. The caller holds s.mu.
func (s *parts) wakeWaiters(id string) {
	if ch, ok := s.waiters[id]; ok {
		close(ch)
		delete(s.waiters, id)
	}
}

// bind implements siblings. It finds a conflict if another part has a different driver, or if the
// same part reported a different driver before. An additional controller may change its driver,
// because the other parts determine the plugin's driver.
func (s *parts) bind(p *supervised, driver string) (was, who string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	mine := p.record.get().Info.Driver
	binds := p.slot == p.id || len(s.byID[p.id]) == 1
	switch first := s.saved[p.id].Info.Driver; {
	case binds && mine != "" && mine != driver:
		return mine, ""
	case s.plugins[p.id] == nil && first != "" && first != driver:
		return first, ""
	}

	for _, o := range s.byID[p.id] {
		if o == p {
			continue
		}

		g := o.look()
		if theirs := g.Info.Driver; theirs != "" && theirs != driver {
			return theirs, strings.TrimSuffix(g.Kind+" "+g.Instance(), " ")
		}
	}

	p.record.edit(func(r *plugin.Record) { r.Info.Driver = driver })
	if mine != "" && mine != driver {
		// try parts again that were refused because of the earlier driver
		for _, o := range s.byID[p.id] {
			o.change(func(d *part.Desired) { d.Retry = true })
		}
	}

	return "", ""
}

// changed returns a channel that is closed at the next change of a plugin's state.
func (s *parts) changed(id string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()

	ch, ok := s.waiters[id]
	if !ok {
		ch = make(chan struct{})
		s.waiters[id] = ch
	}

	return ch
}

// selected returns those parts of a plugin that the argument only selects. The error wraps
// volume.ErrNotFound if there is no such part.
func (s *parts) selected(id string, only []part.Only) ([]*supervised, error) {
	all := s.of(id)
	if len(all) == 0 {
		return nil, unknown(id)
	}

	parts := slices.DeleteFunc(slices.Clone(all), func(p *supervised) bool {
		g := p.look()
		return slices.ContainsFunc(only, func(o part.Only) bool { return !o.Includes(g.Kind, g.Instance()) })
	})

	if len(parts) > 0 {
		return parts, nil
	}

	var have []string
	for _, g := range glances(all) {
		have = append(have, g.Name())
	}

	return nil, volume.Errorf(volume.ErrNotFound, "plugin %q has no such part; it has %s", id, strings.Join(have, ", ")).
		WithRemedy(remedy.Of(remedy.ShowPlugin, id))
}

// remembered returns the last report of a plugin that is not configured any longer.
func (s *parts) remembered(id string) plugin.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.saved[id].Info
}

// glances returns the current states of the given parts of one plugin.
func glances(parts []*supervised) part.Whole {
	all, room := make(part.Whole, len(parts)), make([]part.Glance, len(parts))
	for i, p := range parts {
		room[i] = p.look()
		room[i].Several = len(parts) > 1
		all[i] = &room[i]
	}
	return all
}

// unknown returns the error for a plugin that is not configured.
func unknown(id string) error {
	return volume.Errorf(volume.ErrNotFound, "no plugin %q is configured", id).WithHint("volctl plugin list")
}
