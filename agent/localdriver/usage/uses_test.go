package usage

import (
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/localdriver/mounts"
)

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
		if got := ShowsDirectory(mounts.MountEntry{Root: root}, id); got != want {
			t.Errorf("%q: got %t", root, got)
		}
	}
}

// FuzzShowsDirectory checks that a mount counts as a mount of a volume only if its root contains
// the volume's id.
func FuzzShowsDirectory(f *testing.F) {
	const id = "vol-aaaaaaaaaaaaaaaa"
	for _, root := range []string{"", "/volumes/" + id + "/data", "/volumes/" + id + "/data//deleted", "/volumes/" + id + "/database"} {
		f.Add(root)
	}
	f.Fuzz(func(t *testing.T, root string) {
		if ShowsDirectory(mounts.MountEntry{Root: root}, id) && !strings.Contains(root, id) {
			t.Errorf("%q does not name the volume", root)
		}
	})
}
