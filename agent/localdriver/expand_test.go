package localdriver

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volagent/volagent/agent/localdriver/imagefs"
	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

func (b *bench) expand(id string, size int64) (*csi.ControllerExpandVolumeResponse, error) {
	return b.ControllerExpandVolume(background(), &csi.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: size}})
}

func (b *bench) nodeExpand(id, path string, size int64) error {
	_, err := b.NodeExpandVolume(background(), &csi.NodeExpandVolumeRequest{
		VolumeId: id, VolumePath: path, CapacityRange: &csi.CapacityRange{RequiredBytes: size}})
	return err
}

func (b *bench) capacity(id string) int64 {
	b.t.Helper()
	resp, err := b.ControllerGetVolume(background(), &csi.ControllerGetVolumeRequest{VolumeId: id})
	sandbox.Must(b.t, err)
	return resp.GetVolume().GetCapacityBytes()
}

// wantTotal checks the size that the driver reports for the filesystem or device at a path. The
// filesystem may need up to 30 % of size for its own data.
func (b *bench) wantTotal(id, path string, size int64) {
	b.t.Helper()
	resp, err := b.stats(id, path)
	sandbox.Must(b.t, err)
	if got := resp.GetUsage()[0].GetTotal(); got > size || got < size/10*7 {
		b.t.Errorf("%q has %d bytes, want about %d", path, got, size)
	}
}

// TestGrowInUse expands filesystems while processes read and write, through the staging path and
// through a read-only target.
func TestGrowInUse(t *testing.T) {
	sandbox.NeedLoops(t)
	for _, f := range imagefs.Filesystems {
		t.Run(f.Name, func(t *testing.T) {
			b := newBench(t)
			c, target := mountCap(multiWriter, f.Name), b.path("ro")
			id := b.create("v", f.MinSize, image(f.Name), c)
			sandbox.Must(t, b.stage(id, c))
			sandbox.Must(t, b.publish(id, target, c, true))
			sandbox.Write(t, filepath.Join(b.staging(id), "f"), "kept")
			small, err := b.stats(id, target)
			sandbox.Must(t, err)
			size := f.MinSize
			for _, path := range []string{b.staging(id), target} {
				size *= 2
				// the driver rounds this size up to the size of the volume
				resp, err := b.expand(id, size-1)
				sandbox.Must(t, err)
				if resp.GetCapacityBytes() != size || !resp.GetNodeExpansionRequired() || b.capacity(id) != size {
					t.Fatalf("got %v, recorded are %d", resp, b.capacity(id))
				}
				if got, err := loopdev.BlockSize(b.loops(id)[0].Path()); err != nil || got != size {
					t.Errorf("the device has %d bytes (%v), want %d", got, err, size)
				}
				for range 2 {
					err = b.nodeExpand(id, path, size)
					if f.Name != "ext4" || imagefs.MayGrowMounted() {
						sandbox.Must(t, err)
						b.wantTotal(id, target, size)
						continue
					}
					sandbox.WantCode(t, err, codes.FailedPrecondition, "CAP_SYS_RESOURCE")
				}
			}
			sandbox.WantContent(t, filepath.Join(target, "f"), "kept")
			sandbox.Must(t, b.unpublish(id, target))
			sandbox.Must(t, b.unstage(id))
			sandbox.Must(t, b.stage(id, c))
			b.wantTotal(id, b.staging(id), size)
			if now, err := b.stats(id, b.staging(id)); err != nil || now.GetUsage()[0].GetTotal() <= small.GetUsage()[0].GetTotal() {
				t.Errorf("it was %v and is %v (%v)", small, now, err)
			}
			sandbox.Must(t, b.nodeExpand(id, b.staging(id), size))
			sandbox.WantContent(t, filepath.Join(b.staging(id), "f"), "kept")
			b.clear(id)
		})
	}
}

// TestGrowUnmounted expands volumes that are not in use. The next staging must grow the filesystem,
// even without a call of NodeExpandVolume.
func TestGrowUnmounted(t *testing.T) {
	sandbox.NeedLoops(t)
	for _, f := range imagefs.Filesystems {
		b := newBench(t)
		c := mountCap(writer, f.Name)
		id := b.create("v", f.MinSize, image(f.Name), c)
		_, err := b.expand(id, 2*f.MinSize)
		sandbox.Must(t, err)
		sandbox.Must(t, b.stage(id, mountCap(writer, f.Name, "ro")))
		sandbox.WantCode(t, b.nodeExpand(id, b.staging(id), 0), codes.FailedPrecondition, "staging-"+id)
		sandbox.Must(t, b.unstage(id))
		sandbox.Must(t, b.stage(id, c))
		b.wantTotal(id, b.staging(id), 2*f.MinSize)
		sandbox.Must(t, b.nodeExpand(id, b.staging(id), 0))
		b.clear(id)
	}
}

func TestGrowBlock(t *testing.T) {
	sandbox.NeedLoops(t)
	b := newBench(t)
	c, target := blockCap(writer), b.path("dev")
	id := b.create("v", mib, image(""), c)
	sandbox.Must(t, b.stage(id, c))
	// A read-only target makes the driver attach a second device.
	sandbox.Must(t, b.publish(id, target, c, true))
	resp, err := b.expand(id, 4*mib)
	sandbox.Must(t, err)
	if resp.GetNodeExpansionRequired() {
		t.Error("a raw volume is as large as its device")
	}
	for _, l := range b.loops(id) {
		if got, err := loopdev.BlockSize(l.Path()); err != nil || got != 4*mib {
			t.Errorf("%s has %d bytes (%v)", l.Path(), got, err)
		}
	}
	b.wantTotal(id, target, 4*mib)
	sandbox.Must(t, b.nodeExpand(id, target, 4*mib))
	sandbox.Must(t, b.nodeExpand(id, b.staging(id), 4*mib))
	sandbox.Must(t, b.unpublish(id, target))
	b.clear(id)
}

func TestGrowDirectory(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	id := b.create("v", 1000, asDirectory, c)
	resp, err := b.expand(id, 5000)
	sandbox.Must(t, err)
	if resp.GetCapacityBytes() != 5000 || resp.GetNodeExpansionRequired() {
		t.Errorf("got %v", resp)
	}
	b.restart()
	if got := b.capacity(id); got != 5000 {
		t.Errorf("after a restart it has %d bytes", got)
	}
	sandbox.Must(t, b.stage(id, c))
	sandbox.Must(t, b.nodeExpand(id, b.staging(id), 5000))
	b.clear(id)
}

func TestGrowRefused(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	id := b.create("v", 5000, asDirectory, c)
	ranged := func(id string, required, limit int64, c *csi.VolumeCapability) error {
		_, err := b.ControllerExpandVolume(background(), &csi.ControllerExpandVolumeRequest{
			VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}, VolumeCapability: c})
		return err
	}
	_, err := b.ControllerExpandVolume(background(), &csi.ControllerExpandVolumeRequest{VolumeId: id})
	sandbox.WantCode(t, err, codes.InvalidArgument, "capacity range")
	sandbox.WantCode(t, ranged("", 1, 0, nil), codes.InvalidArgument, "id is empty")
	sandbox.WantCode(t, ranged("vol-aaaaaaaaaaaaaaaa", 1, 0, nil), codes.NotFound, "vol-aaaaaaaaaaaaaaaa")
	sandbox.WantCode(t, ranged(id, -1, 0, nil), codes.InvalidArgument, "negative")
	sandbox.WantCode(t, ranged(id, 9, 8, nil), codes.OutOfRange, "limit_bytes")
	sandbox.WantCode(t, ranged(id, 0, 4999, nil), codes.OutOfRange, "5000", "cannot be shrunk")
	sandbox.WantCode(t, ranged(id, 6000, 0, blockCap(writer)), codes.InvalidArgument, "block access")
	sandbox.Must(t, ranged(id, 4000, 0, c)) // the volume is already larger than the requested size
	if got := b.capacity(id); got != 5000 {
		t.Errorf("it has %d bytes after the refusals", got)
	}
	sandbox.WantCode(t, b.nodeExpand(id, b.path("nowhere"), 0), codes.NotFound, "nowhere")
	sandbox.WantCode(t, b.nodeExpand(id, "", 0), codes.InvalidArgument, "volume path")
	sandbox.WantCode(t, b.nodeExpand("vol-aaaaaaaaaaaaaaaa", "some/path", 0), codes.NotFound)
	sandbox.Must(t, b.stage(id, c))
	sandbox.WantCode(t, b.nodeExpand(id, b.staging(id), 5001), codes.OutOfRange, "ControllerExpandVolume")
	b.clear(id)
	if sandbox.InUserNamespace(t) {
		return
	}
	id = b.create("i", 20*mib, image("ext4"), c)
	sandbox.WantCode(t, ranged(id, 1<<60, 0, nil), codes.OutOfRange, "does not fit")
	sandbox.WantCode(t, ranged(id, 20*mib+1, 20*mib+2, nil), codes.OutOfRange, "multiple")
	sandbox.Must(t, os.Truncate(filepath.Join(b.state, store.DirVolumes, id, store.ImageFile), 19*mib))
	sandbox.WantCode(t, ranged(id, 30*mib, 0, nil), codes.FailedPrecondition, "lost")
	sandbox.Must(t, b.delete(id))
}

// TestGrowCutShort interrupts the expansion after each of its steps, as a crash does. The volume
// must then have the old or the new size, contain its data and be mountable. A repeated call must
// complete the expansion.
func TestGrowCutShort(t *testing.T) {
	sandbox.NeedLoops(t)
	const old, grown = 300 * mib, 600 * mib
	steps := []struct {
		name string
		do   func(b *bench, id string)
	}{
		{"nothing", func(*bench, string) {}},
		{"file", func(b *bench, id string) {
			sandbox.Must(b.t, os.Truncate(filepath.Join(b.state, store.DirVolumes, id, store.ImageFile), grown))
		}},
		{"half a record", func(b *bench, id string) {
			sandbox.Write(b.t, filepath.Join(b.state, store.DirVolumes, id, store.MetaFile+store.FreshSuffix), `{"ver`)
		}},
		{"record", func(b *bench, id string) {
			v, err := store.ReadVolume(filepath.Join(b.state, store.DirVolumes, id, store.MetaFile), id)
			sandbox.Must(b.t, err)
			v.Capacity = grown
			sandbox.Must(b.t, store.WriteVolume(filepath.Join(b.state, store.DirVolumes, id), v))
		}},
		{"device", func(b *bench, id string) { sandbox.Must(b.t, loopdev.GrowLoop(b.loops(id)[0], grown)) }},
	}
	for last := range steps {
		for _, remount := range []bool{false, true} {
			b := newBench(t)
			c := mountCap(writer, "xfs")
			id := b.create("v", old, image("xfs"), c)
			sandbox.Must(t, b.stage(id, c))
			sandbox.Write(t, filepath.Join(b.staging(id), "f"), "kept")
			b.stop()
			for _, s := range steps[:last+1] {
				s.do(b, id)
			}
			b.start()
			want := old
			if last > 0 { // after the first step, the longer file determines the size
				want = grown
			}
			if got := b.capacity(id); got != want || b.recorded(id).Capacity != want {
				t.Errorf("%s: it has %d bytes, and %d are recorded", steps[last].name, got, b.recorded(id).Capacity)
			}
			if remount {
				sandbox.Must(t, b.unstage(id))
				sandbox.Must(t, b.stage(id, c))
			}
			sandbox.WantContent(t, filepath.Join(b.staging(id), "f"), "kept")
			_, err := b.expand(id, grown)
			sandbox.Must(t, err)
			sandbox.Must(t, b.nodeExpand(id, b.staging(id), grown))
			b.wantTotal(id, b.staging(id), grown)
			sandbox.WantGone(t, filepath.Join(b.state, store.DirVolumes, id, store.MetaFile+store.FreshSuffix))
			if got := b.capacity(id); got != grown {
				t.Errorf("%s: finished, it has %d bytes", steps[last].name, got)
			}
			b.clear(id)
		}
	}
}

// TestGrowKilled kills the driver at random moments while it expands a volume that is in use.
func TestGrowKilled(t *testing.T) {
	sandbox.NeedLoops(t)
	b := newBench(t)
	c := mountCap(writer, "xfs")
	id := b.create("v", 300*mib, image("xfs"), c)
	sandbox.Must(t, b.stage(id, c))
	sandbox.Write(t, filepath.Join(b.staging(id), "f"), "kept")
	b.stop()
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	size := 300 * mib
	for round := range rounds {
		kill := b.startProcess()
		killer := time.AfterFunc(time.Duration(round)*time.Millisecond, kill)
		for alive := true; alive; {
			_, err := b.expand(id, size+4*mib)
			if err == nil {
				size += 4 * mib
				err = b.nodeExpand(id, b.staging(id), size)
			}
			alive = err == nil && size < 3*gib
		}
		killer.Stop()
		kill()
		b.start()
		if got := b.capacity(id); got != size && got != size+4*mib {
			t.Fatalf("it has %d bytes, and %d were promised last", got, size)
		}
		_, err := b.expand(id, size+4*mib)
		sandbox.Must(t, err)
		size += 4 * mib
		sandbox.Must(t, b.nodeExpand(id, b.staging(id), size))
		b.wantTotal(id, b.staging(id), size)
		b.stop()
	}
	b.start()
	sandbox.Must(t, b.unstage(id))
	sandbox.Must(t, b.stage(id, c))
	sandbox.WantContent(t, filepath.Join(b.staging(id), "f"), "kept")
	b.clear(id)
}

// TestGrowOneAtATime requests many sizes concurrently. The recorded size must never exceed the size
// of the image file.
func TestGrowOneAtATime(t *testing.T) {
	sandbox.NeedLoops(t)
	b := newBench(t)
	id := b.create("v", mib, image(""), blockCap(writer))
	var wg sync.WaitGroup
	for n := range 20 {
		wg.Go(func() {
			for {
				_, err := b.expand(id, int64(n+1)*mib)
				if err == nil {
					return
				}
				if status.Code(err) != codes.Aborted {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	var st unix.Stat_t
	sandbox.Must(t, unix.Stat(filepath.Join(b.state, store.DirVolumes, id, store.ImageFile), &st))
	if got := b.capacity(id); got != 20*mib || st.Size != 20*mib {
		t.Errorf("recorded are %d bytes, the image has %d", got, st.Size)
	}
	b.clear(id)
}
