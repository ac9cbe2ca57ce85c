package usage

import (
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
