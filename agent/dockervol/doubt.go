package dockervol

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

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

// heldBy returns the doubt that remains if processes in other mount namespaces use the mount.
// Docker has one reference for each mount of a container, and podman has one reference for all
// containers. If returned is set, the runtime has unmounted all references, so the mount explains
// no reference.
func (d Doubt) heldBy(holders []string, returned bool) Doubt {
	switch {
	case returned:
	case d.Runtime == plugin.RuntimePodman:
		d.Leaked = 0
	default:
		d.Leaked = max(d.Of-len(holders), 0)
	}

	d.Kept = strings.Join(holders, ", ")
	return d
}

func (d Doubt) leaked() bool { return d.Leaked > 0 }

func (d Doubt) key() string { return volume.RuntimeKey(d.Runtime, d.Name) + "\x00" + d.Alloc }

// doubts stores the result of the last pass.
type doubts struct {
	mu  sync.Mutex
	all []Doubt
}

// replace stores the result of a pass. A doubt that was already stored keeps its time.
func (l *doubts) replace(found []Doubt, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()

	for i := range found {
		found[i].Since = now
		for _, d := range l.all {
			if d.key() == found[i].key() {
				found[i].Since = d.Since
			}
		}
	}
	l.all = found
}

// Doubts returns the doubts that the last pass found, sorted by runtime and name. It only reads
// memory.
func (s *Service) Doubts() []Doubt {
	s.doubts.mu.Lock()
	defer s.doubts.mu.Unlock()

	all := slices.Clone(s.doubts.all)
	slices.SortFunc(all, func(a, b Doubt) int { return cmp.Compare(a.key(), b.key()) })
	return all
}

// replace stores the message, and reports whether it differs from the last one.
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

// tell logs why a claim stays although no container seems to need it. It logs each reason once.
func (s *Service) tell(v volume.RuntimeVolume, message string, why ...any) {
	if s.told.replace(v.Key(), fmt.Sprint(message, why)) {
		s.Log.Warn(message, append([]any{"runtime", v.Runtime, "volume", v.Name}, why...)...)
	}
}
