package agent

import (
	"context"
	"hash/maphash"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/volume"
)

// notebook writes the notes from which the agent adopts claims if the state database is lost. A
// note that cannot be written does not fail its claim. The notebook writes it later.
type notebook struct {
	records interface {
		Volume(id string) (volume.Record, bool)
		Volumes() []volume.Record
	}
	steps           *volmgr.Manager
	nodeID, dataDir string
	log             hclog.Logger

	seed    maphash.Seed
	writing [16]sync.Mutex // chosen by volume; held while its notes are written
	mu      sync.Mutex
	owed    map[string]volume.Record // by volume: records with notes that could not be written or removed
}

// changed updates the notes of a volume after a change of its record.
func (n *notebook) changed(before, now volume.Record) {
	if n != nil {
		n.update(before, volume.Renoted(before, now))
	}
}

// update writes the notes of some allocs from the current records. With two updates at the same
// time, the last one to run writes the newest state.
func (n *notebook) update(r volume.Record, allocs []string) {
	if len(allocs) == 0 {
		return
	}
	if !n.settle(r, allocs) {
		return
	}

	for { // the disk seems to have room again, so retry failed notes
		r, ok := n.unpaid()
		if !ok || !n.settle(r, n.allocs(r)) {
			return
		}
	}
}

// One record with failed notes is returned, and removed from the list.
func (n *notebook) unpaid() (volume.Record, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()

	for id, r := range n.owed {
		delete(n.owed, id)
		return r, true
	}

	return volume.Record{}, false
}

// settle writes or removes notes of one volume, and reports whether that succeeded.
func (n *notebook) settle(was volume.Record, allocs []string) bool {
	one := &n.writing[maphash.String(n.seed, was.Volume.ID)%uint64(len(n.writing))]
	one.Lock()
	defer one.Unlock()

	r, ok := n.records.Volume(was.Volume.ID)
	for _, alloc := range allocs {
		var err error
		if note, is := volume.Noted(r, alloc); ok && is {
			note.NodeID, note.DataDir = n.nodeID, n.dataDir
			err = n.steps.WriteNote(note)
		} else if _, claimed := r.Claims[alloc]; !claimed {
			err = n.steps.DropNote(was.Volume, alloc)
		}

		if err != nil {
			n.log.Warn("cannot keep a note of what is mounted; it would be missed only if the state database was lost", "error", err)
			n.owe(was)
			return false
		}
	}

	return true
}

func (n *notebook) owe(was volume.Record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.owed == nil {
		n.owed = map[string]volume.Record{}
	}
	n.owed[was.Volume.ID] = was
}

// allocs returns the allocs that have, or had, a note for a volume.
func (n *notebook) allocs(was volume.Record) []string {
	var all []string
	now, _ := n.records.Volume(was.Volume.ID)
	for alloc := range now.Claims {
		all = append(all, alloc)
	}
	for alloc := range was.Claims {
		if _, ok := now.Claims[alloc]; !ok {
			all = append(all, alloc)
		}
	}

	return all
}

// complete writes and removes the notes that an earlier agent left unfinished.
func (n *notebook) complete(ctx context.Context) {
	noted := map[string]bool{}
	for _, r := range n.records.Volumes() {
		if ctx.Err() != nil {
			return
		}

		var missing []string
		for alloc := range r.Claims {
			noted[n.steps.NotePath(r.Volume, alloc)] = true
			if !n.steps.HasNote(r.Volume, alloc) {
				missing = append(missing, alloc)
			}
		}

		n.update(r, missing)
	}

	stray, _ := n.steps.Notes(noted) // an operator must look at unreadable notes
	for _, note := range stray {
		n.update(note.Record, []string{note.Claim.Alloc})
	}
}
