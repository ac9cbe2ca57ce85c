package volmgr_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestLeftovers checks that Leftovers finds all leftovers below the root, and that RemoveLeftover
// removes them.
func TestLeftovers(t *testing.T) {
	root := t.TempDir()
	at := func(path string) string { return filepath.Join(root, path) }
	for _, dir := range []string{
		"p/staging/known", "p/staging/empty", "p/staging/full", "p/per-alloc/a/known", "p/per-alloc/a/empty", "p/per-alloc/bare", "p/per-alloc/b/.p/known", "p/per-alloc/b/.p/empty", "p/per-alloc/c/.p", "p/per-alloc/mine", "p/per-alloc/only/empty",
		"p/meta", "p/staging/.canary", "p/canary", "q/staging", "r",
	} {
		if err := os.MkdirAll(at(dir), 0o711); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"p/staging/full/f", "p/meta/v@a.json", "stray"} {
		if err := os.WriteFile(at(file), []byte("data"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(at("p/per-alloc/a/block"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	host, err := mount.New()
	if err != nil {
		t.Fatal(err)
	}
	m := volmgr.New(volmgr.Options{Root: root, Host: host})
	known := map[string]bool{at("p/staging/known"): true, at("p/per-alloc/a/known"): true, at("p/per-alloc/a"): true, at("p/per-alloc/mine"): true, at("p/per-alloc/b/.p/known"): true, at("p/per-alloc/b/.p"): true, at("p/per-alloc/b"): true}
	list := func() (got []string) {
		t.Helper()
		found, err := m.Leftovers(t.Context(), known)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range found {
			if l.Err != nil || l.Contents.Empty() == (l.Path == at("p/staging/full")) {
				t.Errorf("%+v", l)
			}
			rel, _ := filepath.Rel(root, l.Path)
			got = append(got, rel)
		}
		slices.Sort(got)
		return got
	}
	if got, want := list(), []string{"p/per-alloc/a/block", "p/per-alloc/a/empty", "p/per-alloc/b/.p/empty", "p/per-alloc/bare", "p/per-alloc/c/.p", "p/per-alloc/only/empty", "p/staging/empty", "p/staging/full"}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
	for path, removed := range map[string]bool{
		"p/per-alloc/a/block": true, "p/per-alloc/a/empty": true, "p/per-alloc/b/.p/empty": true, "p/per-alloc/c/.p": true, "p/per-alloc/bare": true, "p/per-alloc/only/empty": true, "p/staging/empty": true,
		"p/staging/full": false, "p/meta": false, "p/meta/v@a.json": false, "p/canary": false, "q/staging": false, "r": false, "stray": false, ".": false, "../x": false, "../staging/x": false,
	} {
		_, before := os.Lstat(root + "/" + path)
		if !filepath.IsLocal(path) && m.RemoveLeftover(root+"/"+path) == nil {
			t.Errorf("%s, as it is spelt, was not refused", path)
		}
		err := m.RemoveLeftover(at(path))
		_, after := os.Lstat(root + "/" + path)
		if removed != errors.Is(after, os.ErrNotExist) && before == nil || !removed && err == nil {
			t.Errorf("%s: %v, then %v, %v", path, before, after, err)
		}
	}
	if _, err := os.Lstat(at("p/per-alloc/only")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of an alloc that was the last's stays: %v", err)
	}
	if got := list(); !slices.Equal(got, []string{"p/staging/full"}) {
		t.Errorf("left: %q", got)
	}
	if found, err := volmgr.New(volmgr.Options{Root: at("none"), Host: host}).Leftovers(t.Context(), nil); len(found) > 0 || err != nil {
		t.Errorf("with no root: %v, %v", found, err)
	}
}

// TestCheckNotes checks that CheckNotes returns an error for each invalid note.
func TestCheckNotes(t *testing.T) {
	root := t.TempDir()
	host, err := mount.New()
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, name := range []string{"a", "b", "c"} {
		path := filepath.Join(root, name)
		paths = append(paths, path)
		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bad := volmgr.New(volmgr.Options{Root: root, Host: host}).CheckNotes(append(paths, filepath.Join(root, "none")))
	var note *volmgr.BadNote
	if len(bad) != 4 || !errors.As(bad[paths[0]], &note) || note.Path != paths[0] || !errors.Is(bad[filepath.Join(root, "none")], os.ErrNotExist) {
		t.Errorf("bad: %v", bad)
	}
}

// TestNoteWaitsForNothing checks that the agent does not block if a note, or the temporary file of
// a note, is a FIFO.
func TestNoteWaitsForNothing(t *testing.T) {
	root := t.TempDir()
	host, err := mount.New()
	if err != nil {
		t.Fatal(err)
	}
	m := volmgr.New(volmgr.Options{Root: root, Host: host})
	note := volume.Note{Record: volume.Record{Volume: volume.Volume{ID: "data", PluginID: "p"}}, Claim: volume.Claim{Alloc: "web"}}
	path := m.NotePath(note.Record.Volume, "web")
	fifo := filepath.Join(filepath.Dir(path), "stray.json")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), syscall.Mkfifo(fifo, 0o600),
		syscall.Mkfifo(filepath.Join(filepath.Dir(path), "."+filepath.Base(path)), 0o600)); err != nil {
		t.Fatal(err)
	}
	if bad := m.CheckNotes([]string{fifo}); bad[fifo] == nil || !strings.Contains(bad[fifo].Error(), "not a regular file") {
		t.Errorf("bad: %v", bad)
	}
	if _, bad := m.Notes(nil); len(bad) != 1 {
		t.Errorf("bad: %v", bad)
	}
	if err := m.WriteNote(note); err == nil {
		t.Error("the note went into the FIFO")
	}
	if err := m.WriteNote(note); err != nil || !m.HasNote(note.Record.Volume, "web") {
		t.Errorf("the FIFO stays: %v", err)
	}
}
