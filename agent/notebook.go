package agent

import (
	"context"
	"hash/maphash"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/volume"
)

// notebook keeps the notes from which claims are adopted if the state database
// is lost. A note that cannot be written costs no claim: it is written later.
type notebook struct {
	records interface {
		Volume(id string) (volume.Record, bool)
		Volumes() []volume.Record
	}
	steps           *volmgr.Manager
	nodeID, dataDir string
	log             hclog.Logger

	seed    maphash.Seed
	writing [16]sync.Mutex // by volume: held while its notes are written
	mu      sync.Mutex
	owed    map[string]volume.Record // by volume: something of its notes could not be done
}

// changed brings the notes of a volume in line after a change of its record.
func (n *notebook) changed(before, now volume.Record) {
	if n != nil {
		n.update(before, volume.Renoted(before, now))
	}
}

// update brings the notes of some allocs in line with the records as they are
// now: of two that come at once the last one is right.
func (n *notebook) update(r volume.Record, allocs []string) {
	if len(allocs) == 0 {
		return
	}
	if !n.settle(r, allocs) {
		return
	}
	for { // there is room again, it seems
		r, ok := n.unpaid()
		if !ok || !n.settle(r, n.allocs(r)) {
			return
		}
	}
}

// unpaid takes out a volume of which something could not be done.
func (n *notebook) unpaid() (volume.Record, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, r := range n.owed {
		delete(n.owed, id)
		return r, true
	}
	return volume.Record{}, false
}

// settle writes or drops notes of one volume and reports whether that went well.
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

// allocs are those whose notes a volume has, or had.
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

// complete writes what an earlier agent did not come to write, and drops what
// it did not come to drop.
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
	stray, _ := n.steps.Notes(noted) // what makes no sense is for people to look at
	for _, note := range stray {
		n.update(note.Record, []string{note.Claim.Alloc})
	}
}
