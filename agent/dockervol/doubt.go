package dockervol

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// Doubt is about references of one claim that no container explains.
type Doubt struct {
	Runtime  string
	Name     string // the runtime's, for the volume
	VolumeID string
	Alloc    string
	Since    time.Time // of the first look of this agent that found it so
	Leaked   int       // how many references no container explains
	Of       int       // how many references the claim has
	// Kept is why the claim stays. Empty: it is released by one of the next looks.
	Kept string
}

func newDoubt(v volume.RuntimeVolume, alloc string) Doubt {
	d := Doubt{Runtime: v.Runtime, Name: v.Name, VolumeID: v.VolumeID, Alloc: alloc}
	for _, r := range v.Refs {
		if r.Alloc == alloc {
			d.Of++
		}
	}
	d.Leaked = d.Of
	return d
}

// heldBy is what remains in doubt while other mount namespaces have the mount. Docker has a
// reference for each of its containers' mounts, podman one for all. If the runtime has
// given all of them back, none is explained.
func (d Doubt) heldBy(holders []string, returned bool) Doubt {
	switch {
	case returned:
	case d.Runtime == volume.RuntimePodman:
		d.Leaked = 0
	default:
		d.Leaked = max(d.Of-len(holders), 0)
	}
	d.Kept = strings.Join(holders, ", ")
	return d
}

func (d Doubt) leaked() bool { return d.Leaked > 0 }

func (d Doubt) key() string { return volume.RuntimeKey(d.Runtime, d.Name) + "\x00" + d.Alloc }

// keepDoubts replaces what Doubts returns. A doubt that lasts keeps its time.
func (s *Service) keepDoubts(now []Doubt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range now {
		now[i].Since = s.now()
		for _, d := range s.doubts {
			if d.key() == now[i].key() {
				now[i].Since = d.Since
			}
		}
	}
	s.doubts = now
}

// Doubts are the references that no container explained at the last look, by runtime and
// name. They are read from memory.
func (s *Service) Doubts() []Doubt {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.doubts)
	slices.SortFunc(all, func(a, b Doubt) int { return cmp.Compare(a.key(), b.key()) })
	return all
}

// reasons are what was logged last of each volume.
type reasons struct {
	mu sync.Mutex
	by map[string]string
}

// replace reports whether the words are not what was logged last.
func (r *reasons) replace(key, words string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by[key] == words {
		return false
	}
	if r.by == nil {
		r.by = map[string]string{}
	}
	r.by[key] = words
	return true
}

func (r *reasons) forget(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.by, key)
}

// tell logs why a claim that no container seems to need stays, once for each reason.
func (s *Service) tell(v volume.RuntimeVolume, message string, why ...any) {
	if s.told.replace(v.Key(), fmt.Sprint(message, why)) {
		s.Log.Warn(message, append([]any{"runtime", v.Runtime, "volume", v.Name}, why...)...)
	}
}
