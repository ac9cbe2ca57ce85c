package loopdev

import (
	"testing"

	"github.com/volagent/volagent/agent/localdriver/mounts"
)

// FuzzBoundNode checks that boundLoopNode returns either no device number or a valid one, for any
// names in a mount table.
func FuzzBoundNode(f *testing.F) {
	for _, root := range []string{"/loop7", "/loop-1", "/loop", "/loop7//deleted", "/x/loop99999999999999999999"} {
		f.Add(root, "/mnt")
	}
	f.Add("/loop7", "/dev/loop7")
	f.Fuzz(func(t *testing.T, root, point string) {
		number, ok := boundLoopNode(mounts.MountEntry{Root: root, Point: point})
		if ok && number < 0 {
			t.Errorf("%q at %q: number %d", root, point, number)
		}
	})
}
