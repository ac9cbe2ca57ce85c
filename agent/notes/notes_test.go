package notes_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/notes"
	"github.com/volagent/volagent/volmgr/volume"
)

// files keeps notes in memory. If full is set, it can neither write nor remove notes.
type files struct {
	mu   sync.Mutex
	full bool
	has  map[string]volume.Note
}

func (f *files) NotePath(v volume.Volume, alloc string) string { return v.ID + "/" + alloc }

func (f *files) WriteNote(n volume.Note) error {
	return f.set(func() { f.has[f.NotePath(n.Record.Volume, n.Claim.Alloc)] = n })
}

func (f *files) DropNote(v volume.Volume, alloc string) error {
	return f.set(func() { delete(f.has, f.NotePath(v, alloc)) })
}

func (f *files) set(fn func()) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full {
		return errors.New("no space left")
	}
	fn()
	return nil
}

func (f *files) HasNote(v volume.Volume, alloc string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.has[f.NotePath(v, alloc)]
	return ok
}

func (f *files) Notes(skip map[string]bool) (all []volume.Note, bad []error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for path, n := range f.has {
		if !skip[path] {
			all = append(all, n)
		}
	}
	return all, nil
}

func (f *files) names() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(f.has)), " ")
}

type records map[string]volume.Record

func (r records) Volume(id string) (volume.Record, bool) {
	rec, ok := r[id]
	return rec, ok
}

func (r records) Volumes() []volume.Record { return slices.Collect(maps.Values(r)) }

func record(id string, allocs ...string) volume.Record {
	r := volume.Record{Volume: volume.Volume{ID: id}, Claims: map[string]volume.Claim{}}
	for _, a := range allocs {
		r.Claims[a] = volume.Claim{Alloc: a, State: volume.Mounted, Published: volume.Present, Mount: &volume.MountIdentity{}}
	}
	return r
}

func notebook() (*notes.Notebook, records, *files) {
	r, f := records{}, &files{has: map[string]volume.Note{}}
	return notes.New(notes.Options{Records: r, Files: f, NodeID: "n", DataDir: "/d", Log: hclog.NewNullLogger()}), r, f
}

// TestChanged checks that each mounted claim has a note, and that the note of an ended claim is
// removed.
func TestChanged(t *testing.T) {
	book, r, f := notebook()
	before, now := record("v"), record("v", "a", "b")
	r["v"] = now
	book.Changed(before, now)
	if f.names() != "v/a v/b" {
		t.Fatalf("notes: %s", f.names())
	}
	if n := f.has["v/a"]; n.NodeID != "n" || n.DataDir != "/d" || n.Claim.Alloc != "a" {
		t.Errorf("the note is %+v", n)
	}

	r["v"] = record("v", "b")
	book.Changed(now, r["v"])
	if f.names() != "v/b" {
		t.Errorf("after one claim has ended: %s", f.names())
	}
	var none *notes.Notebook
	none.Changed(before, now) // a nil Notebook must not panic
}

// TestLater checks that the notebook retries failed notes when it writes the next note.
func TestLater(t *testing.T) {
	book, r, f := notebook()
	f.full = true
	r["v"] = record("v", "a")
	book.Changed(record("v"), r["v"])
	if f.names() != "" {
		t.Fatalf("a full disk has notes: %s", f.names())
	}

	f.full = false
	r["w"] = record("w", "a")
	book.Changed(record("w"), r["w"])
	if f.names() != "v/a w/a" {
		t.Errorf("notes: %s", f.names())
	}
}

// TestComplete checks that Complete writes missing notes and removes notes without a claim.
func TestComplete(t *testing.T) {
	book, r, f := notebook()
	r["v"] = record("v", "a")
	old := record("v", "old")
	f.has["v/old"] = volume.Note{Record: old, Claim: old.Claims["old"]}
	book.Complete(t.Context())
	if f.names() != "v/a" {
		t.Errorf("notes: %s", f.names())
	}
}
