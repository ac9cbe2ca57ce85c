package localdriver

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// TestCopyOfLostData requests copies of missing data. The driver must refuse them, because users
// would mistake an empty or incomplete copy for a backup.
func TestCopyOfLostData(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	refused := func(id, words string) {
		t.Helper()
		_, err := b.CreateSnapshot(background(), snapReq("lost", id))
		sandbox.WantCode(t, err, codes.FailedPrecondition, words)
		_, err = b.CreateVolume(background(), copyReq("lost", fromVolume(id), c))
		sandbox.WantCode(t, err, codes.FailedPrecondition, words)
	}
	dir := b.create("dir", 0, nil, c)
	sandbox.Must(t, os.Remove(b.data(dir)))
	refused(dir, "is missing")
	sandbox.Must(t, os.Symlink("/etc", b.data(dir)))
	refused(dir, "is missing")
	sandbox.Must(t, os.Remove(b.data(dir)))
	sandbox.Mkdir(t, b.data(dir))
	snap := b.snap("s", dir)
	sandbox.Must(t, os.Remove(filepath.Join(b.state, store.DirSnapshots, snap, store.DataDir)))
	_, err := b.CreateVolume(background(), copyReq("lost", fromSnap(snap), c))
	sandbox.WantCode(t, err, codes.FailedPrecondition, "is missing")

	if loopdev.CheckLoopControl() == nil {
		img := b.create("img", 16*mib, image("ext4"), c)
		path := filepath.Join(b.state, store.DirVolumes, img, store.ImageFile)
		sandbox.Must(t, os.Truncate(path, 15*mib))
		refused(img, "a part of it is lost")
		sandbox.Must(t, os.Remove(path))
		_, err := b.CreateVolume(background(), copyReq("lost", fromVolume(img), c))
		if err == nil {
			t.Error("an image that is gone was copied")
		}
		sandbox.Must(t, os.WriteFile(path, nil, 0o600))
		sandbox.Must(t, b.delete(img))
	}
	if got := b.snapshots(&csi.ListSnapshotsRequest{}); len(got) != 1 {
		t.Errorf("listed %v", got)
	}
	if got := b.listed(); len(got) != 1 {
		t.Errorf("listed %v", got)
	}
	b.wantNothingHalf()
}

// TestOtherMountOnTop mounts another filesystem on top of a volume's mount. The driver must not
// freeze the other filesystem.
func TestOtherMountOnTop(t *testing.T) {
	b := newBenchOn(t, "xfs")
	c := mountCap(writer, "ext4")
	id, other := b.create("v", 32*mib, image("ext4"), c), b.create("other", 32*mib, image("ext4"), c)
	sandbox.Must(t, b.stage(id, c))
	sandbox.Must(t, b.stage(other, c))
	sandbox.Must(t, unix.Mount(b.staging(other), b.staging(id), "", unix.MS_BIND, ""))
	_, err := b.CreateSnapshot(background(), snapReq("s", id))
	sandbox.WantCode(t, err, codes.FailedPrecondition, "something else", b.staging(id))
	sandbox.Must(t, b.publishElsewhere(id))
	b.snap("s", id) // the driver finds the volume's filesystem through its other mount
	sandbox.Must(t, unix.Unmount(b.path("elsewhere"), 0))
	sandbox.Must(t, unix.Unmount(b.staging(id), 0))
	b.clear(other)
	b.clear(id)
	b.wantNothingHalf()
}

// publishElsewhere mounts the device of a volume at an additional path, without the driver.
func (b *bench) publishElsewhere(id string) error {
	p := sandbox.Mkdir(b.t, b.dir, "elsewhere")
	return unix.Mount(b.loops(id)[0].Path(), p, "ext4", 0, "")
}

// TestThawedTooEarly thaws a filesystem during its copy. In one case, an operator thaws the
// filesystem. In the other case, the copy takes too long. The copy may then be inconsistent, so the
// driver must refuse it.
func TestThawedTooEarly(t *testing.T) {
	for _, byHand := range []bool{true, false} {
		b := newBenchOn(t, "xfs")
		c := mountCap(writer, "ext4")
		id := b.create("v", 32*mib, image("ext4"), c)
		sandbox.Must(t, b.stage(id, c))
		point := b.staging(id)
		var err error
		b.freeze = time.Hour
		if !byHand {
			b.freeze = 50 * time.Millisecond
		}
		b.restartOn(func(at string) {
			if at != "frozen" {
				return
			}
			if byHand {
				err = thawPath(point)
			}
			// The write blocks until the filesystem is thawed.
			err = errors.Join(err, os.WriteFile(filepath.Join(point, "f"), []byte("x"), 0o600))
		})
		_, failed := b.CreateSnapshot(background(), snapReq("s", id))
		sandbox.WantCode(t, failed, codes.FailedPrecondition, "was thawed")
		sandbox.Must(t, err)
		b.freeze = 0
		b.restartOn(nil)
		b.wantNothingHalf()
		b.snap("s", id)
		b.clear(id)
	}
}

func thawPath(point string) error {
	f, err := os.Open(point)
	if err != nil {
		return err
	}
	return errors.Join(unix.IoctlSetInt(int(f.Fd()), fiThaw, 0), f.Close())
}

// TestSubvolumes copies a directory with btrfs subvolumes. Files in each subvolume have several
// names, and all subvolumes use the same inode numbers.
func TestSubvolumes(t *testing.T) {
	b := newBenchOn(t, "btrfs")
	c := mountCap(writer, "")
	id := b.create("v", 0, nil, c)
	for _, s := range []string{"a", "b"} {
		sub := filepath.Join(b.data(id), s)
		sandbox.Command(t, "btrfs", "subvolume", "create", sub)
		sandbox.Write(t, filepath.Join(sub, "f"), s)
		sandbox.Must(t, os.Link(filepath.Join(sub, "f"), filepath.Join(sub, "g")))
	}
	dup := b.copyOf("copy", fromVolume(id), c)
	for _, s := range []string{"a", "b"} {
		for _, f := range []string{"f", "g"} {
			sandbox.WantContent(t, filepath.Join(b.data(dup), s, f), s)
		}
	}
	sandbox.Must(t, b.delete(dup))
	sandbox.Must(t, b.delete(id))
	b.wantNothingHalf()
}
