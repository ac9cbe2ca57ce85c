package mount

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestShared checks that the result of Shared depends only on the mount that contains the
// directory, on all kernels.
func TestShared(t *testing.T) {
	dir := tempDir(t)
	mountFS(t, "tmpfs", "t", mkdir(t, dir, "own"), 0, "")
	inner := mkdir(t, dir, "own/inner")
	old := newHost(t)
	old.noStatmount = true
	for _, tt := range []struct {
		propagation uintptr
		want        bool
	}{{unix.MS_PRIVATE, false}, {unix.MS_SHARED, true}, {unix.MS_SLAVE, false}, {unix.MS_UNBINDABLE, false}} {
		check(t, unix.Mount("", dir+"/own", "", tt.propagation, ""))
		for name, h := range map[string]*Host{"statmount": newHost(t), "mountinfo": old} {
			if got, err := h.Shared(inner); got != tt.want || err != nil {
				t.Errorf("%s, propagation %#x: %v, %v", name, tt.propagation, got, err)
			}
		}
	}
	if _, err := newHost(t).Shared(dir + "/none"); err == nil {
		t.Error("what is not there is shared or not")
	}
}
