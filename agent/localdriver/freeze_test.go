package localdriver

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/imagefs"
	"github.com/volagent/volagent/agent/localdriver/sandbox"
)

// isFrozen reports whether the filesystem is frozen. It tries to freeze the filesystem, because the
// kernel refuses to freeze it twice.
func isFrozen(t *testing.T, point string) bool {
	t.Helper()
	f, err := os.Open(point)
	sandbox.Must(t, err)
	defer func() { sandbox.Must(t, f.Close()) }()
	err = unix.IoctlSetInt(int(f.Fd()), fiFreeze, 0)
	if err == nil {
		sandbox.Must(t, unix.IoctlSetInt(int(f.Fd()), fiThaw, 0))
		return false
	}
	if !errors.Is(err, unix.EBUSY) {
		t.Fatalf("cannot tell whether %q is frozen: %v", point, err)
	}
	return true
}

// TestKilledWhileFrozen kills the driver while filesystems are frozen. The filesystems stay frozen
// until the next driver starts and thaws them, even if a filesystem was unmounted in the meantime.
func TestKilledWhileFrozen(t *testing.T) {
	sandbox.NeedLoops(t)
	for _, f := range imagefs.Filesystems {
		b := newBench(t)
		c := mountCap(writer, f.Name)
		id := b.create("v", f.MinSize, image(f.Name), c)
		sandbox.Must(t, b.stage(id, c))
		point := b.staging(id)
		sandbox.Write(t, filepath.Join(point, "f"), "before")
		for _, unmounted := range []bool{false, true} {
			b.stop()
			died := b.dying("frozen")
			if _, err := b.CreateSnapshot(background(), snapReq("s", id)); err == nil {
				t.Errorf("%s: a snapshot came from a dead driver", f.Name)
			}
			died()
			if !isFrozen(t, point) {
				t.Errorf("%s: it is not frozen, so the test shows nothing", f.Name)
			}
			if unmounted {
				sandbox.Must(t, unix.Unmount(point, 0))
			}
			b.start()
			sandbox.Must(t, b.stage(id, c))
			if isFrozen(t, point) {
				t.Fatalf("%s: it is still frozen (unmounted meanwhile: %t)", f.Name, unmounted)
			}
			sandbox.Write(t, filepath.Join(point, "f"), "after")
			b.wantNothingHalf()
		}
		b.snap("s", id)
		b.clear(id)
	}
}

// TestFrozenByOthers checks that the driver does not thaw a filesystem that another program froze.
func TestFrozenByOthers(t *testing.T) {
	b := newBenchOn(t, "xfs")
	c := mountCap(writer, "ext4")
	id := b.create("v", 32*mib, image("ext4"), c)
	sandbox.Must(t, b.stage(id, c))
	dir, err := os.Open(b.staging(id))
	sandbox.Must(t, err)
	sandbox.Must(t, unix.IoctlSetInt(int(dir.Fd()), fiFreeze, 0))
	_, err = b.CreateSnapshot(background(), snapReq("s", id))
	sandbox.WantCode(t, err, codes.FailedPrecondition, "frozen by another program", "fsfreeze")
	b.restart()
	if !isFrozen(t, b.staging(id)) {
		t.Error("a freeze of another program was undone")
	}
	sandbox.Must(t, unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0))
	sandbox.Must(t, dir.Close())
	b.wantNothingHalf()
	b.clear(id)
}
