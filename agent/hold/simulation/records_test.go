package simulation_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// image is the content of a host's state database on its disk.
type image struct {
	volumes map[string]volume.Record
	member  shared.Membership
	drains  bool // a person drains the host
	clean   bool // the last agent has stopped in order
	boot    int  // the boot in which the image was written
}

// records are the records of one agent: those in its memory, and those on the disk of its host.
type records struct {
	a *agent

	mu     sync.Mutex
	mem    map[string]volume.Record
	member shared.Membership
	drains atomic.Bool // changes only under mu; a decision about a claim reads it under mu
}

// errDead is the error of a process that does not exist any more.
var errDead = errors.New("the agent is dead")

// newRecords returns the records that an agent finds on the disk.
func newRecords(a *agent, after volume.Stop) *records {
	s := &records{a: a, mem: map[string]volume.Record{}, member: a.h.disk.member}
	s.drains.Store(a.h.disk.drains)
	for id, r := range a.h.disk.volumes {
		r, _ = volume.Loaded(r, after, false)
		s.mem[id] = r
	}
	s.commit(false)
	return s
}

// commit writes all records to the disk. The caller holds mu.
func (s *records) commit(clean bool) {
	s.a.h.disk = image{volumes: maps.Clone(s.mem), member: s.member, drains: s.drains.Load(), clean: clean, boot: s.a.h.booted()}
}

// stopped records that the agent has stopped in order.
func (s *records) stopped() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commit(true)
}

// Volume returns a record.
func (s *records) Volume(id string) (volume.Record, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.mem[id]
	return r, ok
}

// Volumes returns all records, in order of their ids.
func (s *records) Volumes() []volume.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []volume.Record
	for _, id := range slices.Sorted(maps.Keys(s.mem)) {
		all = append(all, s.mem[id])
	}
	return all
}

// Leftovers returns no records, because no volume is deregistered.
func (s *records) Leftovers() []volume.Record { return nil }

// Draining reports whether a person drains the host.
func (s *records) Draining() bool { return s.drains.Load() }

// SetDraining stores whether a person drains the host.
func (s *records) SetDraining(_ context.Context, drains bool) (changed bool, err error) {
	err = s.update(func() (bool, error) {
		changed = s.drains.Swap(drains) != drains
		return changed, nil
	})
	return changed, err
}

// Membership returns the stored membership of the host.
func (s *records) Membership() shared.Membership {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.member
}

// PutMembership stores the membership of the host.
func (s *records) PutMembership(_ context.Context, m shared.Membership) error {
	return s.update(func() (bool, error) {
		s.member = m
		return true, nil
	})
}

// update changes the records, and writes them to the disk if fn returns true.
func (s *records) update(fn func() (bool, error)) error {
	s.a.gate()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.a.gone() {
		return errDead
	}
	changed, err := fn()
	if changed && err == nil {
		s.commit(false)
	}
	return err
}

// ChangeShared changes or adds the record of a shared volume.
func (s *records) ChangeShared(_ context.Context, id string, fn func(volume.Record, bool) (volume.Record, bool)) error {
	return s.update(func() (bool, error) {
		r, ok := s.mem[id]
		next, changed := fn(r, ok)
		if changed {
			s.mem[id] = next
		}
		return changed, nil
	})
}

// ForgetIdle deletes the record of a volume that the host does not use.
func (s *records) ForgetIdle(_ context.Context, id string) error {
	return s.update(func() (bool, error) {
		r, ok := s.mem[id]
		if !ok || !r.Idle() {
			return false, nil
		}
		delete(s.mem, id)
		return true, nil
	})
}

// Save stores the result of a step.
func (s *records) Save(_ context.Context, id string, fn func(volume.Record) (volume.Record, volume.Saving)) error {
	return s.update(func() (bool, error) {
		r, ok := s.mem[id]
		if !ok {
			return false, nil
		}
		next, saving := fn(r)
		s.mem[id] = next
		return saving != volume.SaveWithNext, nil
	})
}

// Intend stores an intent.
func (s *records) Intend(_ context.Context, id string, fn func(volume.Record) volume.Record) error {
	return s.update(func() (bool, error) {
		r, ok := s.mem[id]
		if ok {
			s.mem[id] = fn(r)
		}
		return ok, nil
	})
}

// Change stores an intent of a claim.
func (s *records) Change(_ context.Context, id string, fn func(volume.Record) (volume.Record, bool, error)) error {
	return s.update(func() (bool, error) {
		r, ok := s.mem[id]
		if !ok {
			return false, volume.Errorf(volume.ErrNotFound, "no volume %q", id)
		}
		next, changed, err := fn(r)
		if changed && err == nil {
			s.mem[id] = next
		}
		return changed, err
	})
}

// Detach stores the end of a claim.
func (s *records) Detach(ctx context.Context, id string, fn func(volume.Record) (volume.Record, bool, error)) error {
	return s.Change(ctx, id, fn)
}
