package dockervol

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

const (
	// reapEvery is between two looks for references whose containers are gone.
	reapEvery = 30 * time.Second
	// youngest is how long ago a reference was last heard of before it is doubted: a
	// runtime has a volume mounted before it shows the container.
	youngest = time.Minute
	// agreeing is how many looks in turn have to find nobody.
	agreeing = 2
	// askWithin bounds one look at one volume.
	askWithin = 30 * time.Second
)

// Run looks for references that are left over until ctx ends: of containers whose end the
// runtime did not tell, since it was killed itself.
func (s *Service) Run(ctx context.Context) {
	tick := time.NewTicker(reapEvery)
	defer tick.Stop()
	for {
		s.Reap(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Reap takes one look. A reference goes only if, twice in turn, no other mount namespace
// has the mount and the runtime itself knows no container that uses the volume. Where
// either does not answer, nothing goes; nor what is asked for meanwhile.
func (s *Service) Reap(ctx context.Context) {
	s.orphans(ctx)
	seen := map[string]int{}
	for _, v := range s.Store.RuntimeVolumes() {
		for _, alloc := range allocs(v) {
			if ctx.Err() != nil {
				return
			}
			key := v.Key() + "\x00" + alloc
			turns := s.turns(v, alloc)
			if turns == nil || !s.left(ctx, v, alloc) {
				continue
			}
			if seen[key] = s.suspects[key] + 1; seen[key] >= agreeing {
				s.reap(ctx, v, alloc, turns)
				delete(seen, key)
			}
		}
	}
	s.suspects = seen
}

// allocs are those of a volume's references, each once.
func allocs(v volume.RuntimeVolume) []string {
	var names []string
	for _, r := range v.Refs {
		names = append(names, r.Alloc)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// turns are the last turns of an alloc's references, by their ids; nil if it is too early
// to doubt them.
func (s *Service) turns(v volume.RuntimeVolume, alloc string) map[string]uint64 {
	s.mu.Lock()
	starting := s.mounting[v.Runtime] > 0
	s.mu.Unlock()
	turns := map[string]uint64{}
	for _, r := range v.Refs {
		if r.Alloc != alloc {
			continue
		}
		t := s.heard(v.Key(), r.ID)
		if starting || s.now().Sub(t.at) < youngest {
			return nil
		}
		turns[r.ID] = t.turn
	}
	return turns
}

// left reports whether nobody seems to use what an alloc has.
func (s *Service) left(ctx context.Context, v volume.RuntimeVolume, alloc string) bool {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	if r, ok := s.Store.Volume(v.VolumeID); ok && r.Claims[alloc].Mount != nil {
		c := r.Claims[alloc]
		holders, err := s.Mounts.Elsewhere(ctx, *c.Mount, mine(c.Target, r.Node.StagingPath))
		if err != nil || len(holders) > 0 {
			s.Log.Trace("containers keep a volume", "runtime", v.Runtime, "volume", v.Name, "holders", holders, "error", err)
			return false
		}
	}
	using, err := s.Containers.Using(ctx, v.Runtime, v.Name)
	switch {
	case ctx.Err() != nil && err != nil:
	case err != nil:
		s.tell(v, "cannot tell whether containers use a volume, so its claim stays", "error", err)
	case len(using) > 0:
		s.tell(v, "no process has a volume, and its claim stays for what may be about to", "who", strings.Join(using, ", "))
	default:
		delete(s.told, v.Key())
	}
	return err == nil && len(using) == 0
}

// tell says why a claim that nobody seems to need stays, once for each reason.
func (s *Service) tell(v volume.RuntimeVolume, message string, why ...any) {
	words := fmt.Sprint(message, why)
	if s.told[v.Key()] == words {
		return
	}
	if s.told == nil {
		s.told = map[string]string{}
	}
	s.told[v.Key()] = words
	s.Log.Warn(message, append([]any{"runtime", v.Runtime, "volume", v.Name}, why...)...)
}

// mine are the agent's own paths of a volume.
func mine(paths ...string) []string {
	return slices.DeleteFunc(paths, func(path string) bool { return path == "" })
}

// reap drops the references of an alloc that were there when nobody was seen to use them,
// and were not asked for since.
func (s *Service) reap(ctx context.Context, v volume.RuntimeVolume, alloc string, turns map[string]uint64) {
	went := false
	_, err := s.unrefer(ctx, v.Runtime, v.Name, func(r volume.RuntimeRef) bool {
		turn, was := turns[r.ID]
		left := was && r.Alloc == alloc && s.heard(v.Key(), r.ID).turn == turn
		went = went || left
		return left
	})
	if err == nil && !went {
		return // its container was started meanwhile
	}
	if err != nil {
		s.Log.Warn("cannot release a volume whose containers are gone; it is tried again", "runtime", v.Runtime, "volume", v.VolumeID, "error", err)
		return
	}
	s.Events(volume.Event{
		Type: "owner-gone", Volume: v.VolumeID, Alloc: alloc,
		Message: fmt.Sprintf("no container of %s uses it any more, and nobody told", v.Runtime),
	})
}

// orphans releases claims of runtimes that no reference needs: an agent died between the
// two, or the name was lost.
func (s *Service) orphans(ctx context.Context) {
	for _, r := range s.Store.Volumes() {
		for _, c := range r.Ordered() {
			if c.Owner.Kind != volume.OwnerRuntime || !c.Wanted {
				continue
			}
			v, ok := s.Store.RuntimeVolume(c.Owner.Runtime, c.Owner.Volume)
			if ok && v.Claimed(c.Alloc) {
				continue
			}
			if err := s.orphan(ctx, r.Volume.ID, c); err != nil {
				s.Log.Warn("cannot release a volume that no container refers to; it is tried again", "volume", r.Volume.ID, "alloc", c.Alloc, "error", err)
			}
		}
	}
}

// orphan looks once more, under the lock.
func (s *Service) orphan(ctx context.Context, id string, c volume.Claim) error {
	release, err := s.locks.hold(ctx, volume.RuntimeKey(c.Owner.Runtime, c.Owner.Volume))
	if err != nil {
		return err
	}
	defer release()
	if v, ok := s.Store.RuntimeVolume(c.Owner.Runtime, c.Owner.Volume); ok && v.Claimed(c.Alloc) {
		return nil
	}
	return s.Claims.Drop(ctx, id, c)
}
