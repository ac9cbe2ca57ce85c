package localdriver

import (
	"maps"
	"slices"
	"sync"

	"github.com/volagent/volagent/agent/localdriver/loopdev"
)

// seen remembers at which paths each volume may be mounted, so that a call need not search a mount
// table with thousands of lines. The paths are only a hint, so every caller checks a path before
// relying on it. If the paths of a volume are unknown, for example after a restart, the driver
// searches the mount table once.
type seen struct {
	mu     sync.Mutex
	points map[string]map[string]bool // the known paths, by volume id
	loops  map[string][]string        // the names of loop devices, by volume id
}

// devices returns the names of the loop devices that the volume had when they were last read.
func (s *seen) devices(id string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loops[id]
}

// learnDevices replaces the names of a volume's loop devices.
func (s *seen) learnDevices(id string, loops []loopdev.LoopDevice) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.loops == nil {
		s.loops = map[string][]string{}
	}
	names := make([]string, len(loops))
	for i, l := range loops {
		names[i] = l.Name
	}

	s.loops[id] = names
}

// at returns the known paths of a volume. The result known is false if the driver has not searched
// the mount table for the volume yet.
func (s *seen) at(id string) (paths []string, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, known := s.points[id]
	return slices.Collect(maps.Keys(m)), known
}

// learn records that the paths of a volume are known, and adds the given paths.
func (s *seen) learn(id string, paths ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.points == nil {
		s.points = map[string]map[string]bool{}
	}
	if s.points[id] == nil {
		s.points[id] = map[string]bool{}
	}
	for _, p := range paths {
		s.points[id][p] = true
	}
}

// forget removes one path from the known paths of a volume.
func (s *seen) forget(id, path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.points[id], path)
}

// drop forgets all paths and devices of a deleted volume.
func (s *seen) drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.points, id)
	delete(s.loops, id)
}
