package facts

import (
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/agent/doctor"
	"github.com/volagent/volagent/agent/notes"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/volume"
)

// noteFacts implements the doctor's access to the notes beside the mounts.
type noteFacts struct {
	db    records.Store
	steps *volmgr.Manager
	book  *notes.Notebook
}

// notedWithin is how long a mounted claim may have no note. The agent writes the note shortly after
// it has mounted the volume.
const notedWithin = 10 * time.Second

// Check finds notes that do not match the records, and claims without a note. A claim keeps its
// note until its detach has ended.
func (n noteFacts) Check(records []volume.Record) (found []doctor.NoteFile) {
	known, of := map[string]bool{}, map[string]doctor.NoteFile{}
	var there []string
	for _, r := range records {
		for alloc, c := range r.Claims {
			path := n.steps.NotePath(r.Volume, alloc)
			known[path] = true
			note := doctor.NoteFile{Path: path, Record: r, Alloc: alloc, Claimed: true}
			_, due := volume.Noted(r, alloc)

			switch {
			case n.steps.HasNote(r.Volume, alloc):
				there, of[path] = append(there, path), note
			case due && time.Since(c.Since) > notedWithin:
				found = append(found, note)
			}
		}
	}

	for path, err := range n.steps.CheckNotes(there) {
		// If the note no longer exists, the claim has ended since the note was found.
		if note := of[path]; n.steps.HasNote(note.Record.Volume, note.Alloc) {
			note.Bad = errors.Unwrap(err)
			found = append(found, note)
		}
	}

	stray, bad := n.steps.Notes(known)
	for _, s := range stray {
		r, _ := n.db.Volume(s.Record.Volume.ID)
		if _, claimed := r.Claims[s.Claim.Alloc]; !claimed && n.steps.HasNote(s.Record.Volume, s.Claim.Alloc) {
			found = append(found, doctor.NoteFile{Path: n.steps.NotePath(s.Record.Volume, s.Claim.Alloc), Record: s.Record, Alloc: s.Claim.Alloc})
		}
	}

	for _, err := range bad {
		var b *volmgr.BadNote
		if errors.As(err, &b) {
			found = append(found, doctor.NoteFile{Path: b.Path, Bad: b.Err})
		}
	}

	return found
}

// Fix rewrites the note of a claim from the current record.
func (n noteFacts) Fix(f doctor.NoteFile) error {
	if n.book == nil || !n.book.Settle(f.Record, []string{f.Alloc}) {
		return fmt.Errorf("cannot bring the note of the claim of %q on volume %q in line: the agent's log says why", f.Alloc, f.Record.Volume.ID)
	}
	return nil
}
