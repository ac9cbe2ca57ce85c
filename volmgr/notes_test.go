package volmgr_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

func manager(t testing.TB) (*volmgr.Manager, string) {
	t.Helper()
	host, err := mount.New()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(t.TempDir(), "csi")
	return volmgr.New(volmgr.Options{Root: root, Host: host}), root
}

// note returns a note for the claim of an alloc to a volume.
func note(id, alloc string) volume.Note {
	mode := call.Capability{Access: call.SingleNodeWriter, Attachment: call.FileSystem}
	return volume.Note{
		Format: volume.NoteFormat, NodeID: "n", DataDir: "/d",
		Record: volume.Record{
			Volume: volume.Volume{ID: id, PluginID: "p", ExternalID: "e", Secrets: map[string]call.SecretRef{"key": {File: "/etc/key"}}},
			Node:   volume.NodeSide{Mode: &volume.Mode{Capability: mode}, Seq: 1, PublishContext: map[string]string{"lun": "3"}},
		},
		Claim: volume.Claim{
			Alloc: alloc, Seq: 1, Wanted: true, State: volume.Mounted, Terms: volume.Terms{Mode: mode}, Target: "/t", Published: volume.Present, Mount: &volume.MountIdentity{ID: 5},
		},
	}
}

// TestNotes checks that written notes can be read again, and that only root can read their files.
// After DropNote, no files must remain.
func TestNotes(t *testing.T) {
	m, root := manager(t)
	for _, id := range []string{"data", "..a volume", strings.Repeat("long", 30)} {
		for _, alloc := range []string{"web", "a@b", ".hidden"} {
			for range 2 {
				if err := m.WriteNote(note(id, alloc)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	notes, bad := m.Notes(nil)
	if len(notes) != 9 || len(bad) != 0 {
		t.Fatalf("%d notes, %v", len(notes), bad)
	}
	for _, n := range notes {
		want := note(n.Record.Volume.ID, n.Claim.Alloc)
		if n.Boot == "" || n.Namespace == 0 || n.NodeID != "n" || n.DataDir != "/d" || n.Record.Node.PublishContext["lun"] != "3" || *n.Claim.Mount != *want.Claim.Mount {
			t.Errorf("note: %+v", n)
		}
	}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		want := os.FileMode(0o600)
		if d.IsDir() {
			want = map[bool]os.FileMode{true: 0o700, false: 0o711}[d.Name() == "meta"]
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %o, want %o", path, info.Mode().Perm(), want)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for _, n := range notes {
		for range 2 {
			if err := m.DropNote(n.Record.Volume, n.Claim.Alloc); err != nil {
				t.Error(err)
			}
		}
		if m.HasNote(n.Record.Volume, n.Claim.Alloc) {
			t.Error("a note that was dropped is there")
		}
	}
	if left, err := os.ReadDir(filepath.Join(root, "p", "meta")); err != nil || len(left) > 0 {
		t.Errorf("left: %v (%v)", left, err)
	}
}

// TestBadNotes checks that the agent ignores a note that is invalid or has the name of another
// note. Such a note must remain in place. A temporary file must not count as a note.
func TestBadNotes(t *testing.T) {
	m, root := manager(t)
	if err := m.WriteNote(note("good", "x")); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "p", "meta")
	raw, err := os.ReadFile(filepath.Join(dir, "good@x.json"))
	if err != nil {
		t.Fatal(err)
	}
	bad := map[string]string{
		"other@x.json": string(raw), "empty@x.json": "", "half@x.json": string(raw[:len(raw)/2]), "list@x.json": "[]",
		"later@x.json": strings.Replace(strings.ReplaceAll(string(raw), "good", "later"), `"format":1`, `"format":2`, 1),
	}
	for name, text := range bad {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, ".new@x.json"), raw[:9], 0o600), os.Mkdir(filepath.Join(root, "no-notes"), 0o700)); err != nil {
		t.Fatal(err)
	}
	notes, errs := m.Notes(nil)
	if len(notes) != 1 || len(errs) != len(bad) {
		t.Errorf("%d notes, and %d errors: %v", len(notes), len(errs), errs)
	}
	for name := range bad {
		if !strings.Contains(fmt.Sprint(errs), name) {
			t.Errorf("nothing is said of %s", name)
		}
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

// BenchmarkNote measures the cost of all note operations for one claim, from its mount to its
// detach.
func BenchmarkNote(b *testing.B) {
	m, _ := manager(b)
	n := note("data", "web")
	for b.Loop() {
		if err := errors.Join(m.WriteNote(n), m.DropNote(n.Record.Volume, "web")); err != nil {
			b.Fatal(err)
		}
	}
}
