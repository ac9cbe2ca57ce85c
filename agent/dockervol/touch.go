package dockervol

import (
	"slices"

	"github.com/volagent/volagent/volmgr/volume"
)

// mounts records that a Mount for a reference begins, and returns the number of the call. The
// caller holds the lock of the name.
func (s *Service) mounts(key, id string) (turn uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn++
	s.put(key, id, touch{s.turn, s.now()})
	return s.turn
}

// answered records that a Mount for a reference ends now.
func (s *Service) answered(key, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.touched[key][id]; ok {
		s.put(key, id, touch{t.turn, s.now()})
	}
}

// heard returns when the agent last heard of a reference. For a reference from disk, it returns the
// time of the first call of heard.
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

// forget deletes the times of references that the volume no longer has. The caller holds the lock
// of the name.
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
