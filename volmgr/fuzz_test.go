package volmgr_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr"
)

// FuzzNote checks that the agent never changes a file that it finds instead of a note. If the agent
// accepts a file as a note, the content must be a valid note of the claim in the file's name.
func FuzzNote(f *testing.F) {
	good, err := json.Marshal(note("good", "x"))
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{
		"", "{}", "null", "[]", string(good), strings.Replace(string(good), "good", "../../etc", 1), strings.Replace(string(good), `"x"`, `"y"`, 1),
		strings.Replace(string(good), `"p"`, `"q"`, 1), string(good[:len(good)/2]), string(good) + "{}", strings.Replace(string(good), `"taken"`, `"odd"`, 1),
	} {
		f.Add("good@x.json", []byte(text))
	}
	f.Add("good@x.json", []byte(strings.Repeat("[", 1<<20)))
	f.Add("~2E~2E@x.json", good)
	m, root := manager(f)
	dir := filepath.Join(root, "p", "meta")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, name string, raw []byte) {
		if name == "" || name[0] == '.' || strings.ContainsAny(name, "/\x00") || len(name) > 255 {
			return
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.Remove(path) }()
		notes, bad := m.Notes(nil)
		var no *volmgr.BadNote
		if len(notes)+len(bad) != 1 || len(bad) == 1 && (!errors.As(bad[0], &no) || no.Path != path) {
			t.Fatalf("%d notes, %v", len(notes), bad)
		}
		for _, n := range notes {
			if m.NotePath(n.Record.Volume, n.Claim.Alloc) != path || n.Check() != nil {
				t.Errorf("%s is read as %+v", path, n)
			}
			if adopted := m.Adopt(t.Context(), notes); len(adopted) != 1 || adopted[0].Volume.ID != n.Record.Volume.ID {
				t.Errorf("%+v is adopted as %+v", n, adopted)
			}
		}
		if left, err := os.ReadFile(path); err != nil || string(left) != string(raw) {
			t.Errorf("it was changed: %v", err)
		}
	})
}
