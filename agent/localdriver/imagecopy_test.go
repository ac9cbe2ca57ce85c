package localdriver

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/imagefs"
	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// stateKinds are filesystems for the state directory that behave differently in these tests. ext4
// cannot share data between files; xfs and btrfs can.
var stateKinds = []string{"ext4", "xfs", "btrfs"}

// TestRestoreBesideSource takes snapshots of mounted images and makes copies. It mounts the source,
// the copies and a copy of a copy at the same time. Each mount must show its own data.
func TestRestoreBesideSource(t *testing.T) {
	for _, state := range stateKinds {
		b := newBenchOn(t, state)
		for _, f := range imagefs.Filesystems {
			c := mountCap(writer, f.Name)
			src := b.create("src-"+f.Name, f.MinSize, image(f.Name), c)
			sandbox.Must(t, b.stage(src, c))
			file := filepath.Join(b.staging(src), "f")
			sandbox.Write(t, file, "one")
			snap := b.snap("s-"+f.Name, src)
			sandbox.Write(t, file, "two")
			// The copy has the filesystem of its source, although the request does not name a
			// filesystem.
			first := b.copyOf("first-"+f.Name, fromSnap(snap), mountCap(writer, ""))
			second := b.copyOf("second-"+f.Name, fromVolume(src), c)
			third := b.copyOf("third-"+f.Name, fromVolume(first), c)
			sandbox.Must(t, b.unsnap(snap))
			uuids := map[string]string{uuidOf(t, b, src, f.Name): src}
			for id, want := range map[string]string{first: "one", second: "two", third: "one"} {
				uuid := uuidOf(t, b, id, f.Name)
				if uuids[uuid] != "" {
					t.Errorf("%s: %s has the UUID of %s", f.Name, id, uuids[uuid])
				}
				uuids[uuid] = id
				sandbox.Must(t, b.stage(id, c))
				sandbox.WantContent(t, filepath.Join(b.staging(id), "f"), want)
				sandbox.Write(t, filepath.Join(b.staging(id), "g"), id)
			}
			sandbox.WantContent(t, file, "two")
			sandbox.WantGone(t, filepath.Join(b.staging(src), "g"))
			for _, id := range []string{src, second, first, third} {
				b.clear(id)
			}
		}
		b.wantNothingHalf()
	}
}

// uuidOf reads the UUID of the filesystem in an image. All UUIDs must differ, because some kernels
// refuse to mount two filesystems with the same UUID.
func uuidOf(t *testing.T, b *bench, id, fsType string) string {
	t.Helper()
	img, err := os.Open(filepath.Join(b.state, store.DirVolumes, id, store.ImageFile))
	sandbox.Must(t, err)
	uuid := make([]byte, 16)
	_, err = img.ReadAt(uuid, map[string]int64{"ext4": 1024 + 0x68, "xfs": 32, "btrfs": 65536 + 0x20}[fsType])
	sandbox.Must(t, errors.Join(err, img.Close()))
	return string(uuid)
}

// TestLargerCopies requests copies that are larger than their source. The full size of each copy
// must be usable.
func TestLargerCopies(t *testing.T) {
	b := newBenchOn(t, "xfs")
	for _, f := range imagefs.Filesystems {
		c := mountCap(writer, f.Name)
		src := b.create("src-"+f.Name, f.MinSize, image(f.Name), c)
		req := copyReq("copy-"+f.Name, fromVolume(src), c)
		req.CapacityRange = &csi.CapacityRange{RequiredBytes: 2 * f.MinSize}
		resp, err := b.CreateVolume(background(), req)
		sandbox.Must(t, err)
		if got := resp.GetVolume().GetCapacityBytes(); got != 2*f.MinSize {
			t.Errorf("%s: the copy has %d bytes", f.Name, got)
		}
		id := resp.GetVolume().GetVolumeId()
		sandbox.Must(t, b.stage(id, c))
		stats, err := b.stats(id, b.staging(id))
		sandbox.Must(t, err)
		if total := stats.GetUsage()[0].GetTotal(); total < 3*f.MinSize/2 {
			t.Errorf("%s: the filesystem has %d bytes of %d", f.Name, total, 2*f.MinSize)
		}
		b.clear(id)
		sandbox.Must(t, b.delete(src))
	}
}

// TestUncleanCopies makes copies of images after a simulated power loss. The copies therefore need
// the journal of the filesystem.
func TestUncleanCopies(t *testing.T) {
	b := newBenchOn(t, "xfs")
	for _, fsType := range []string{"ext4", "xfs"} {
		fs, _ := imagefs.FindFilesystem(fsType)
		c := mountCap(writer, fsType)
		id := b.create("v"+fsType, fs.MinSize, image(fsType), c)
		sandbox.Must(t, b.stage(id, c))
		f, err := os.Create(filepath.Join(b.staging(id), "f"))
		sandbox.Must(t, err)
		_, err = f.WriteString("synced")
		sandbox.Must(t, errors.Join(err, f.Sync()))
		const shutdown = 0x8004587d
		sandbox.Must(t, unix.IoctlSetPointerInt(int(f.Fd()), shutdown, 2))
		sandbox.Must(t, f.Close())
		// Unmount it without the driver's help, because an xfs that has shut down does not even
		// allow a stat.
		sandbox.Must(t, unix.Unmount(filepath.Dir(f.Name()), 0))
		sandbox.Must(t, b.unstage(id))
		dup := b.copyOf("copy"+fsType, fromVolume(id), c)
		sandbox.Must(t, b.stage(dup, c))
		sandbox.WantContent(t, filepath.Join(b.staging(dup), "f"), "synced")
		b.clear(dup)
		b.clear(id)
	}
}

// TestLargeImageInUse takes a snapshot of a mounted image that is too large to copy while its
// writers wait. If the filesystem can share data, the snapshot must succeed at once. Otherwise the
// driver must refuse it until the volume is no longer in use.
func TestLargeImageInUse(t *testing.T) {
	for _, state := range stateKinds {
		b := newBenchOn(t, state)
		c := mountCap(writer, "ext4")
		id := b.create("v", 300*mib, image("ext4"), c)
		sandbox.Must(t, b.stage(id, c))
		sandbox.Must(t, os.WriteFile(filepath.Join(b.staging(id), "f"), bytes.Repeat([]byte("x"), int(shortCopy+8*mib)), 0o600))
		_, err := b.CreateSnapshot(background(), snapReq("s", id))
		if state == "ext4" {
			sandbox.WantCode(t, err, codes.FailedPrecondition, "detach it first", "xfs or btrfs", "128.0 MiB")
			sandbox.Write(t, filepath.Join(b.staging(id), "g"), "writers do not hang")
			b.wantNothingHalf()
		} else {
			sandbox.Must(t, err)
		}
		sandbox.Must(t, b.unstage(id))
		snap := b.snap("s", id)
		dup := b.copyOf("copy", fromSnap(snap), c)
		sandbox.Must(t, b.stage(dup, c))
		got, err := os.ReadFile(filepath.Join(b.staging(dup), "f"))
		sandbox.Must(t, err)
		if len(got) != int(shortCopy+8*mib) || len(bytes.Trim(got, "x")) > 0 {
			t.Errorf("%s: the copy has %d bytes", state, len(got))
		}
		b.clear(dup)
		b.clear(id)
		sandbox.Must(t, b.unsnap(snap))
	}
}

// TestRawImageInUse takes snapshots of large raw volumes that are in use. Unlike a filesystem, a
// block device cannot be frozen.
func TestRawImageInUse(t *testing.T) {
	for _, state := range stateKinds {
		b := newBenchOn(t, state)
		c := blockCap(writer)
		id := b.create("v", 4*mib, image(""), c)
		sandbox.Must(t, b.stage(id, c))
		sandbox.Must(t, b.publish(id, b.path("t"), c, false))
		dev, err := os.OpenFile(b.path("t"), os.O_RDWR, 0)
		sandbox.Must(t, err)
		_, err = dev.WriteAt([]byte("written and not synced"), 2*mib)
		sandbox.Must(t, err)
		_, err = b.CreateSnapshot(background(), snapReq("s", id))
		if state == "ext4" {
			sandbox.WantCode(t, err, codes.FailedPrecondition, "block device", "detach it first")
		} else {
			sandbox.Must(t, err)
		}
		sandbox.Must(t, dev.Close())
		sandbox.Must(t, b.unpublish(id, b.path("t")))
		sandbox.Must(t, b.unstage(id))
		snap := b.snap("s", id)
		dup := b.copyOf("copy", fromSnap(snap), c)
		sandbox.Must(t, b.stage(dup, c))
		sandbox.Must(t, b.publish(dup, b.path("t"), c, true))
		got := make([]byte, 22)
		dev, err = os.Open(b.path("t"))
		sandbox.Must(t, err)
		_, err = dev.ReadAt(got, 2*mib)
		sandbox.Must(t, errors.Join(err, dev.Close()))
		if string(got) != "written and not synced" {
			t.Errorf("%s: the copy holds %q", state, got)
		}
		b.clear(dup, b.path("t"))
		b.clear(id)
		_, err = b.CreateVolume(background(), copyReq("fs", fromSnap(snap), mountCap(writer, "ext4")))
		sandbox.WantCode(t, err, codes.InvalidArgument, "raw image", "block access")
		sandbox.Must(t, b.unsnap(snap))
	}
}

// TestOneMoment takes snapshots while a process writes numbers. The process writes each number
// first to one file and then to another, in the same volume or in two volumes. In no snapshot may
// the second file contain a higher number than the first.
func TestOneMoment(t *testing.T) {
	b := newBenchOn(t, "xfs")
	c := mountCap(writer, "ext4")
	one, two := b.create("one", 32*mib, image("ext4"), c), b.create("two", 32*mib, image("ext4"), c)
	sandbox.Must(t, b.stage(one, c))
	sandbox.Must(t, b.stage(two, c))
	files := []string{filepath.Join(b.staging(one), "n"), filepath.Join(b.staging(two), "n")}
	for _, f := range files {
		sandbox.Write(t, f, "0000000000")
	}
	stop, ended := make(chan struct{}), make(chan error, 1)
	var at atomic.Int64
	b.restartOn(func(point string) {
		if point != "cut" {
			return
		}
		// Between the copies of two images, give the writers time to write other numbers. If the
		// writers are blocked, end after 100 waits.
		for start, n := at.Load(), 0; at.Load() < start+4 && n < 100; n++ {
			<-time.After(2 * time.Millisecond)
		}
	})
	go func() { ended <- count(files, &at, stop) }()
	var groups []*csi.VolumeGroupSnapshot
	for i := range 5 {
		resp, err := b.CreateVolumeGroupSnapshot(background(), &csi.CreateVolumeGroupSnapshotRequest{
			Name: "g" + strconv.Itoa(i), SourceVolumeIds: []string{two, one}})
		sandbox.Must(t, err)
		groups = append(groups, resp.GetGroupSnapshot())
	}
	close(stop)
	sandbox.Must(t, <-ended)
	for _, g := range groups {
		n := map[string]int{}
		for _, s := range g.GetSnapshots() {
			dup := b.copyOf("copy-"+s.GetSnapshotId(), fromSnap(s.GetSnapshotId()), c)
			sandbox.Must(t, b.stage(dup, c))
			raw, err := os.ReadFile(filepath.Join(b.staging(dup), "n"))
			sandbox.Must(t, err)
			n[s.GetSourceVolumeId()], err = strconv.Atoi(strings.TrimLeft(string(raw[:9]), "0") + string(raw[9:]))
			sandbox.Must(t, err)
			b.clear(dup)
		}
		if len(n) != 2 || n[one] < n[two] || n[one] > n[two]+1 {
			t.Errorf("the group shows %d and %d", n[one], n[two])
		}
	}
	b.clear(one)
	b.clear(two)
}

// count writes increasing numbers to the files. It writes each number to one file after the other,
// and waits each time until the number is on disk.
func count(files []string, at *atomic.Int64, stop chan struct{}) error {
	open := make([]*os.File, len(files))
	for i, p := range files {
		f, err := os.OpenFile(p, os.O_WRONLY|unix.O_SYNC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // closing cannot lose data, because every write is synced
		open[i] = f
	}
	for n := 1; ; n++ {
		for _, f := range open {
			if _, err := f.WriteAt([]byte(strconv.Itoa(1e9 + n)[0:10]), 0); err != nil {
				return err
			}
		}
		at.Store(int64(n))
		select {
		case <-stop:
			return nil
		default:
		}
	}
}
