// Package notes writes a file, called a note, beside the mounts of each claim. The note describes
// the claim. If the state database is lost, the agent restores the claims from their notes.
package notes

import (
	"context"
	"hash/maphash"
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/volume"
)

// Records returns the current records.
type Records interface {
	Volume(id string) (volume.Record, bool)
	Volumes() []volume.Record
}

// Files writes, reads and removes the notes of claims.
type Files interface {
	WriteNote(volume.Note) error
	DropNote(v volume.Volume, alloc string) error
	NotePath(v volume.Volume, alloc string) string
	HasNote(v volume.Volume, alloc string) bool
	Notes(skip map[string]bool) (notes []volume.Note, bad []error)
}

// Options configures a Notebook. All fields must be set.
type Options struct {
	Records Records
	Files   Files
	// NodeID and DataDir are part of each note.
	NodeID, DataDir string
	Log             hclog.Logger
}

// Notebook writes the notes. If it cannot write a note, the claim still succeeds, and the notebook
// retries later.
type Notebook struct {
	o       Options
	seed    maphash.Seed
	writing [16]sync.Mutex // locks for writing notes; a hash of the volume's id selects the lock
	mu      sync.Mutex
	failed  map[string]volume.Record // records whose notes could not be written or removed, by volume id
}

// New returns a Notebook with the given options.
func New(o Options) *Notebook {
	return &Notebook{o: o, seed: maphash.MakeSeed(), failed: map[string]volume.Record{}}
}

// Changed updates the notes of a volume after its record has changed. A nil Notebook writes no
// notes.
func (n *Notebook) Changed(before, now volume.Record) {
	if n != nil {
		n.Update(before, volume.Renoted(before, now))
	}
}

// Update writes or removes the notes of the given allocs. It reads the current records, so after
// concurrent updates, the notes show the newest state.
func (n *Notebook) Update(r volume.Record, allocs []string) {
	if len(allocs) == 0 {
		return
	}
	if !n.Settle(r, allocs) {
		return
	}

	for { // the last write succeeded, so this is a good time to retry the failed notes
		r, ok := n.takeFailed()
		if !ok || !n.Settle(r, n.allocs(r)) {
			return
		}
	}
}

// takeFailed removes one record with failed notes from the list, and returns it.
func (n *Notebook) takeFailed() (volume.Record, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()

	for id, r := range n.failed {
		delete(n.failed, id)
		return r, true
	}

	return volume.Record{}, false
}

// Settle writes or removes the notes of one volume. It reports whether it succeeded.
func (n *Notebook) Settle(was volume.Record, allocs []string) bool {
	one := &n.writing[maphash.String(n.seed, was.Volume.ID)%uint64(len(n.writing))]
	one.Lock()
	defer one.Unlock()

	r, ok := n.o.Records.Volume(was.Volume.ID)
	for _, alloc := range allocs {
		var err error
		if note, is := volume.Noted(r, alloc); ok && is {
			note.NodeID, note.DataDir = n.o.NodeID, n.o.DataDir
			err = n.o.Files.WriteNote(note)
		} else if _, claimed := r.Claims[alloc]; !claimed {
			err = n.o.Files.DropNote(was.Volume, alloc)
		}

		if err != nil {
			n.o.Log.Warn("cannot update the notes of a volume; the agent retries with its next note", "error", err)
			n.setFailed(was)
			return false
		}
	}

	return true
}

func (n *Notebook) setFailed(was volume.Record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failed[was.Volume.ID] = was
}

// allocs returns the allocs that have a claim on the volume now, or that had a claim in the old
// record was.
func (n *Notebook) allocs(was volume.Record) []string {
	now, _ := n.o.Records.Volume(was.Volume.ID)
	all := slices.Collect(maps.Keys(now.Claims))
	for alloc := range was.Claims {
		if _, ok := now.Claims[alloc]; !ok {
			all = append(all, alloc)
		}
	}

	return all
}

// Complete writes missing notes, and removes notes without a claim, after a restart. The agent may
// have ended before it could do so.
func (n *Notebook) Complete(ctx context.Context) {
	noted := map[string]bool{}
	for _, r := range n.o.Records.Volumes() {
		if ctx.Err() != nil {
			return
		}

		var missing []string
		for alloc := range r.Claims {
			noted[n.o.Files.NotePath(r.Volume, alloc)] = true
			if !n.o.Files.HasNote(r.Volume, alloc) {
				missing = append(missing, alloc)
			}
		}

		n.Update(r, missing)
	}

	// An operator must check unreadable notes, so ignore them here.
	stray, _ := n.o.Files.Notes(noted)
	for _, note := range stray {
		n.Update(note.Record, []string{note.Claim.Alloc})
	}
}
