package dockervol

import (
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// touch is when this agent last heard of a reference. It is not on disk: what happened
// before the agent started is as good as now, and a clock that is set changes nothing.
type touch struct {
	turn uint64 // of the last call of Mount for it; 0 is none
	at   time.Time
}

// mounts notes that a Mount is asked for a reference, and returns which turn that is; the
// name's lock is held.
func (s *Service) mounts(key, id string) (turn uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn++
	s.put(key, id, touch{s.turn, s.now()})
	return s.turn
}

// answered notes that a Mount for a reference is answered now.
func (s *Service) answered(key, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.touched[key][id]; ok {
		s.put(key, id, touch{t.turn, s.now()})
	}
}

// heard is when a reference was heard of: now, if it was on disk and this is the first
// question.
func (s *Service) heard(key, id string) touch {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.touched[key][id]
	if !ok {
		t = touch{at: s.now()}
		s.put(key, id, t)
	}
	return t
}

func (s *Service) put(key, id string, t touch) {
	if s.touched == nil {
		s.touched = map[string]map[string]touch{}
	}
	if s.touched[key] == nil {
		s.touched[key] = map[string]touch{}
	}
	s.touched[key][id] = t
}

// forget drops what is known of references that a volume has no more; its name's lock is
// held.
func (s *Service) forget(v volume.RuntimeVolume) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := v.Key()
	for id := range s.touched[key] {
		if !slices.ContainsFunc(v.Refs, func(r volume.RuntimeRef) bool { return r.ID == id }) {
			delete(s.touched[key], id)
		}
	}
	if len(s.touched[key]) == 0 {
		delete(s.touched, key)
	}
}
