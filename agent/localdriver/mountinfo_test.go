package localdriver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/volagent/volagent/agent/localdriver/sandbox"
)

// TestReadMounts checks that readMounts returns all names and options of a mount from its line.
func TestReadMounts(t *testing.T) {
	for line, want := range map[string]mountEntry{
		`36 35 98:0 /a\040b /mnt\134x rw,noatime shared:1 master:2 - ext4 /dev/sda1 rw,errors=continue`: {"36", "98:0", "/a b", `/mnt\x`, "ext4", "/dev/sda1", false, "rw,errors=continue"},
		`36 35 0:5 /loop3 /t nodev,ro - devtmpfs none rw`:                                               {"36", "0:5", "/loop3", "/t", "devtmpfs", "none", true, "rw"},
		`36 35 0:5 /x /t rw - fuse.a a\011b rw`:                                                         {"36", "0:5", "/x", "/t", "fuse.a", "a\tb", false, "rw"},
	} {
		file := filepath.Join(t.TempDir(), "mountinfo")
		sandbox.Must(t, os.WriteFile(file, []byte(line+"\n"), 0o600))
		if got, err := readMounts(file, ":"); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%q: got %+v, want %+v, %v", line, got, want, err)
		}
	}
}

func TestShowsDirectory(t *testing.T) {
	const id = "vol-aaaaaaaaaaaaaaaa"
	for root, want := range map[string]bool{
		"/var/s/volumes/" + id + "/data":             true,
		"/volumes/" + id + "/data":                   true,
		"/s/volumes/" + id + "/data/sub":             true,
		"/s/volumes/" + id + "/data//deleted":        true,
		"/s/volumes/" + id + "/database":             false,
		"/s/volumes/" + id:                           false,
		"/s/volumes/vol-bbbbbbbbbbbbbbbb/data":       false,
		"/s/volumes/vol-bbbbbbbbbbbbbbbb/data/" + id: false,
	} {
		if got := showsDirectory(mountEntry{root: root}, id); got != want {
			t.Errorf("%q: got %t", root, got)
		}
	}
}

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := newID()
		if !validID(id) || seen[id] {
			t.Fatalf("%q is not valid or not new", id)
		}
		seen[id] = true
	}
}
