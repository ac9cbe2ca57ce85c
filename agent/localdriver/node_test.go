package localdriver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/imagefs"
	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// cycle stages, publishes, unpublishes, unstages and deletes a mounted volume. It makes each call
// twice. The second call must change nothing.
func cycle(t *testing.T, b *bench, id string, fsType string, size int64) {
	t.Helper()
	c := mountCap(writer, fsType)
	target := b.path("target-" + id)
	sandbox.WantCode(t, b.publish(id, target, c, false), codes.FailedPrecondition, "not staged")
	sandbox.WantGone(t, target)
	for range 2 {
		sandbox.Must(t, b.stage(id, c))
	}
	for range 2 {
		sandbox.Must(t, b.publish(id, target, c, false))
	}
	st, err := os.Stat(target)
	sandbox.Must(t, err)
	if st.Mode().Perm() != 0o755 {
		t.Errorf("the root of the volume has mode %v", st.Mode())
	}
	sandbox.Write(t, filepath.Join(target, "f"), "hello")
	resp, err := b.stats(id, target)
	sandbox.Must(t, err)
	if u := resp.GetUsage()[0]; u.GetUnit() != csi.VolumeUsage_BYTES || u.GetTotal() <= 0 || size > 0 && (u.GetTotal() > size || u.GetTotal() < size/2) {
		t.Errorf("stats of %d bytes: %v", size, resp)
	}
	_, err = b.stats(id, b.dir)
	sandbox.WantCode(t, err, codes.NotFound)
	sandbox.WantCode(t, b.delete(id), codes.FailedPrecondition, "in use")
	sandbox.WantCode(t, b.unstage(id), codes.FailedPrecondition, target)
	for range 2 {
		sandbox.Must(t, b.unpublish(id, target))
		sandbox.WantGone(t, target)
	}
	for range 2 {
		sandbox.Must(t, b.unstage(id))
	}
	wantNotMounted(t, b.staging(id))
	// Stage the volume again. The written data must still exist, because staging never formats the
	// device.
	sandbox.Must(t, b.stage(id, c))
	sandbox.Must(t, b.publish(id, target, c, false))
	sandbox.WantContent(t, filepath.Join(target, "f"), "hello")
	b.clear(id, target)
	sandbox.Must(t, b.delete(id))
	if left, err := os.ReadDir(filepath.Join(b.state, store.DirTrash)); err != nil || len(left) > 0 {
		t.Errorf("trash holds %v (%v)", left, err)
	}
}

func TestDirectory(t *testing.T) {
	b := newBench(t)
	cycle(t, b, b.create("data", 0, nil, mountCap(writer, "")), "", 0)
}

func TestImages(t *testing.T) {
	sandbox.NeedLoops(t)
	for _, f := range imagefs.Filesystems {
		t.Run(f.Name, func(t *testing.T) {
			b := newBench(t)
			id := b.create("data", f.MinSize, image(f.Name), mountCap(writer, f.Name))
			var st unix.Stat_t
			sandbox.Must(t, unix.Stat(filepath.Join(b.state, store.DirVolumes, id, store.ImageFile), &st))
			if st.Size != f.MinSize || st.Blocks*512 >= f.MinSize {
				t.Errorf("the image has %d bytes and takes %d: not sparse", st.Size, st.Blocks*512)
			}
			cycle(t, b, id, f.Name, f.MinSize)
			if l := b.path("state", store.DirVolumes, id); len(sandbox.LoopsUnder(l)) > 0 {
				t.Errorf("still attached: %v", sandbox.LoopsUnder(l))
			}
		})
	}
}

func TestReadOnly(t *testing.T) {
	b := newBench(t)
	ids := map[string]string{"directory": b.create("d", 0, nil, mountCap(writer, ""))}
	if !sandbox.InUserNamespace(t) {
		ids["image"] = b.create("i", 16*mib, image("ext4"), mountCap(writer, ""))
	}
	for what, id := range ids {
		t.Run(what, func(t *testing.T) {
			rw, many, target := b.path("rw"), mountCap(multiWriter, ""), b.path("ro")
			sandbox.Must(t, b.stage(id, many))
			sandbox.Must(t, b.publish(id, rw, many, false))
			for name, c := range map[string]*csi.VolumeCapability{
				"asked for": many, "by access mode": mountCap(readerOnly, ""), "by flag": mountCap(multiWriter, "", "ro"),
			} {
				if name == "by access mode" {
					// the new access mode allows only one target, so remove the first one
					sandbox.Must(t, b.unpublish(id, rw))
				}
				sandbox.Must(t, b.publish(id, target, c, name == "asked for"))
				if err := os.WriteFile(filepath.Join(target, "f"), nil, 0o600); !errors.Is(err, unix.EROFS) {
					t.Errorf("%s: a write got %v", name, err)
				}
				sandbox.Must(t, b.publish(id, target, c, true))
				sandbox.WantCode(t, b.publish(id, target, many, false), codes.AlreadyExists, "read-only")
				sandbox.Must(t, b.unpublish(id, target))
				sandbox.Must(t, b.publish(id, rw, many, false))
				sandbox.Write(t, filepath.Join(rw, "f"), "still writable")
			}
			b.clear(id, rw)
		})
	}
}

func TestOneTarget(t *testing.T) {
	b := newBench(t)
	t1, t2 := b.path("t1"), b.path("t2")
	for _, m := range []mode{writer, singleWriter, readerOnly} {
		id := b.create(m.String(), 0, nil, mountCap(m, ""))
		sandbox.Must(t, b.stage(id, mountCap(m, "")))
		sandbox.Must(t, b.publish(id, t1, mountCap(m, ""), false))
		sandbox.WantCode(t, b.publish(id, t2, mountCap(m, ""), false), codes.FailedPrecondition, t1)
		sandbox.WantGone(t, t2)
		// The driver must refuse a second target, even with another access mode and after a
		// restart.
		many := mountCap(multiWriter, "")
		sandbox.WantCode(t, b.publish(id, t2, many, false), codes.FailedPrecondition, t1, "one target")
		b.restart()
		sandbox.WantCode(t, b.publish(id, t2, many, false), codes.FailedPrecondition, t1, "one target")
		sandbox.Must(t, b.unpublish(id, t1))
		sandbox.Must(t, b.publish(id, t1, many, false))
		sandbox.Must(t, b.publish(id, t2, many, false))
		b.clear(id, t1, t2)
	}
	c := mountCap(multiWriter, "")
	id := b.create("many", 0, nil, c)
	sandbox.Must(t, b.stage(id, c))
	sandbox.Must(t, b.publish(id, t1, c, false))
	sandbox.Must(t, b.publish(id, t2, c, false))
	sandbox.Write(t, filepath.Join(t1, "f"), "x")
	sandbox.WantContent(t, filepath.Join(t2, "f"), "x")
	b.clear(id, t1, t2)
}

func TestMountFlags(t *testing.T) {
	b := newBench(t)
	id := b.create("v", 0, nil, mountCap(writer, ""))
	sandbox.WantCode(t, b.stage(id, mountCap(writer, "", "noatime", "discard")), codes.InvalidArgument, `"discard"`)
	flags, want := []string{"noexec,nosuid", "noatime"}, int64(unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NOATIME)
	// In a user namespace, the kernel does not allow changes to the access-time settings of the
	// host.
	if sandbox.InUserNamespace(t) {
		sandbox.WantCode(t, b.stage(id, mountCap(writer, "", flags...)), codes.FailedPrecondition, "user namespace")
		flags, want = flags[:1], unix.MS_NOEXEC|unix.MS_NOSUID
	}
	c := mountCap(writer, "", flags...)
	sandbox.Must(t, b.stage(id, c))
	sandbox.Must(t, b.publish(id, b.path("t"), c, false))
	var fs unix.Statfs_t
	sandbox.Must(t, unix.Statfs(b.path("t"), &fs))
	if fs.Flags&want != want {
		t.Errorf("the flags are %#x", fs.Flags)
	}
	b.clear(id, b.path("t"))

	if sandbox.InUserNamespace(t) {
		return
	}
	id = b.create("i", 16*mib, image("ext4"), mountCap(writer, ""))
	err := b.stage(id, mountCap(writer, "", "no-such-option"))
	sandbox.WantCode(t, err, codes.InvalidArgument, "no-such-option")
	if l := b.loops(id); len(l) > 0 {
		t.Errorf("a failed stage left %v", l)
	}
	sandbox.Must(t, b.stage(id, mountCap(writer, "", "ro", "commit=30")))
	if ro, err := mounts.IsReadOnly(b.staging(id)); err != nil || !ro {
		t.Errorf("read-only is %t (%v)", ro, err)
	}
	sandbox.WantCode(t, b.stage(id, mountCap(writer, "")), codes.AlreadyExists, "read-only")
	// The mount flag of the staged volume makes the target read-only, too.
	sandbox.Must(t, b.publish(id, b.path("t"), mountCap(writer, ""), false))
	sandbox.Must(t, b.publish(id, b.path("t"), mountCap(writer, ""), false))
	b.clear(id, b.path("t"))
}

// TestForeignMounts mounts other data at all paths at which the driver makes mounts. The driver
// must neither use nor remove these mounts.
func TestForeignMounts(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	id := b.create("v", 0, nil, c)
	other := b.create("other", 0, nil, c)
	stg, target := b.staging(id), b.path("t")
	sandbox.Tmpfs(t, stg, "size=64k")
	sandbox.Write(t, filepath.Join(stg, "f"), "not yours")
	sandbox.WantCode(t, b.stage(id, c), codes.FailedPrecondition, "is not volume")
	sandbox.WantCode(t, b.publish(id, target, c, false), codes.FailedPrecondition, "not staged")
	sandbox.WantCode(t, b.unstage(id), codes.FailedPrecondition, "so it stays")
	sandbox.WantContent(t, filepath.Join(stg, "f"), "not yours")
	sandbox.Must(t, unix.Unmount(stg, 0))

	sandbox.Must(t, b.stage(id, c))
	sandbox.Must(t, os.Mkdir(target, 0o755))
	sandbox.Tmpfs(t, target, "size=64k")
	sandbox.Write(t, filepath.Join(target, "f"), "not yours")
	sandbox.WantCode(t, b.publish(id, target, c, false), codes.FailedPrecondition, "is not volume")
	sandbox.WantCode(t, b.unpublish(id, target), codes.FailedPrecondition, "so it stays")
	sandbox.WantContent(t, filepath.Join(target, "f"), "not yours")
	sandbox.Must(t, unix.Unmount(target, 0))

	// A mount of another volume of the same driver must also count as foreign.
	sandbox.Must(t, b.stage(other, c))
	sandbox.Must(t, b.publish(other, target, c, false))
	sandbox.WantCode(t, b.publish(id, target, c, false), codes.FailedPrecondition)
	sandbox.WantCode(t, b.unpublish(id, target), codes.FailedPrecondition)
	b.clear(other, target)
	b.clear(id)
}

// TestPartOfVolume mounts only a subdirectory of the volume at its staging path. The driver must
// not accept this mount as the volume.
func TestPartOfVolume(t *testing.T) {
	b := newBench(t)
	ids := []string{b.create("d", 0, nil, mountCap(writer, ""))}
	if !sandbox.InUserNamespace(t) {
		ids = append(ids, b.create("i", 16*mib, image("ext4"), mountCap(writer, "")), b.create("x", 300*mib, image("xfs"), mountCap(writer, "")))
	}
	for _, id := range ids {
		c, view := mountCap(writer, ""), sandbox.Mkdir(t, b.path("view"+id))
		sandbox.Must(t, b.stage(id, c))
		sandbox.Must(t, unix.Mount(sandbox.Mkdir(t, b.staging(id), "sub"), view, "", unix.MS_BIND, ""))
		sandbox.Must(t, unix.Unmount(b.staging(id), 0))
		sandbox.Must(t, unix.Mount(view, b.staging(id), "", unix.MS_BIND, ""))
		sandbox.WantCode(t, b.stage(id, c), codes.FailedPrecondition, "is not volume")
		sandbox.WantCode(t, b.publish(id, b.path("t"), c, false), codes.FailedPrecondition, "not staged")
		sandbox.Must(t, unix.Unmount(b.staging(id), 0))
		sandbox.Must(t, unix.Unmount(view, 0))
		b.clear(id)
	}
}

func TestTargetsWithContent(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	id := b.create("v", 0, nil, c)
	sandbox.Must(t, b.stage(id, c))
	dir, file, link := b.path("dir"), b.path("file"), b.path("link")
	sandbox.Must(t, os.Mkdir(dir, 0o755))
	sandbox.Write(t, filepath.Join(dir, "f"), "mine")
	sandbox.Write(t, file, "mine")
	sandbox.Must(t, os.Symlink(dir, link))
	for _, p := range []string{dir, file, link} {
		sandbox.WantCode(t, b.publish(id, p, c, false), codes.FailedPrecondition, p)
		sandbox.WantCode(t, b.unpublish(id, p), codes.FailedPrecondition, p)
	}
	sandbox.WantContent(t, filepath.Join(dir, "f"), "mine")
	sandbox.WantContent(t, file, "mine")
	sandbox.WantCode(t, b.publish(id, b.path("no", "parent"), c, false), codes.FailedPrecondition, "parent")
	sandbox.Must(t, b.unpublish(id, b.path("no", "parent")))
	for _, p := range []string{"relative", b.path("a") + "/../b", "/", filepath.Join(b.state, store.DirVolumes, "x"), b.state} {
		sandbox.WantCode(t, b.publish(id, p, c, false), codes.InvalidArgument)
		sandbox.WantCode(t, b.unpublish(id, p), codes.InvalidArgument)
	}
	sandbox.Must(t, os.Symlink(b.state, b.path("in")))
	sandbox.WantCode(t, b.publish(id, b.path("in", "t"), c, false), codes.InvalidArgument, "state directory")
	b.clear(id)
}

func TestBusy(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	id := b.create("v", 0, nil, c)
	target := b.path("t")
	sandbox.Must(t, b.stage(id, c))
	sandbox.Must(t, b.publish(id, target, c, false))
	f, err := os.Create(filepath.Join(target, "open"))
	sandbox.Must(t, err)
	sandbox.WantCode(t, b.unpublish(id, target), codes.Internal, "busy")
	mountID(t, target)
	sandbox.Must(t, f.Close())
	b.clear(id, target)
}

// TestParallel creates, uses and deletes volumes of all kinds in parallel. The volumes compete for
// loop devices.
func TestParallel(t *testing.T) {
	b := newBench(t)
	kinds := []*csi.CreateVolumeRequest{createReq("d", 0, nil, mountCap(writer, ""))}
	if !sandbox.InUserNamespace(t) {
		kinds = append(kinds, createReq("i", 16*mib, image("ext4"), mountCap(writer, "")), createReq("r", mib, image(""), blockCap(writer)))
	}
	var wg sync.WaitGroup
	for n := range 12 {
		kind := kinds[n%len(kinds)]
		wg.Go(func() {
			c, target := kind.GetVolumeCapabilities()[0], b.path(fmt.Sprintf("t%d", n))
			resp, err := b.CreateVolume(background(), createReq(fmt.Sprint(n), kind.GetCapacityRange().GetRequiredBytes(), kind.GetParameters(), c))
			if err != nil {
				t.Error(err)
				return
			}
			id := resp.GetVolume().GetVolumeId()
			for _, step := range []func() error{
				func() error { return b.stage(id, c) },
				func() error { return b.publish(id, target, c, n%2 == 0) },
				func() error { return b.unpublish(id, target) },
				func() error { return b.unstage(id) },
				func() error { return b.delete(id) },
			} {
				if err := step(); err != nil {
					t.Errorf("volume %d: %v", n, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got := b.listed(); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}

// TestMountsInsideStayApart makes the test's directory a shared mount, as the root of a host
// usually is. It then makes a mount inside one target of a volume. The new mount must not appear in
// the volume's other mounts.
func TestMountsInsideStayApart(t *testing.T) {
	b := newBench(t)
	sandbox.Must(t, unix.Mount(b.dir, b.dir, "", unix.MS_BIND, ""))
	t.Cleanup(func() { sandbox.Must(t, unix.Unmount(b.dir, unix.MNT_DETACH)) })
	sandbox.Must(t, unix.Mount("", b.dir, "", unix.MS_SHARED, ""))
	b.restart()
	c := mountCap(multiWriter, "")
	id := b.create("v", 0, nil, c)
	t1, t2 := b.path("t1"), b.path("t2")
	sandbox.Must(t, b.stage(id, c))
	sandbox.Must(t, b.publish(id, t1, c, false))
	sandbox.Must(t, b.publish(id, t2, c, false))
	sandbox.Must(t, os.Mkdir(filepath.Join(t1, "sub"), 0o755))
	sandbox.Tmpfs(t, filepath.Join(t1, "sub"), "size=64k")
	mountID(t, filepath.Join(t1, "sub"))
	for _, p := range []string{t2, b.staging(id), filepath.Join(b.state, store.DirVolumes, id, store.DataDir)} {
		wantNotMounted(t, filepath.Join(p, "sub"))
	}
	sandbox.Must(t, unix.Unmount(filepath.Join(t1, "sub"), 0))
	b.clear(id, t1, t2)
	b.stop()
}

// TestMountedElsewhere keeps a volume mounted in another mount namespace, as a container does. The
// driver must refuse to delete this volume.
func TestMountedElsewhere(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	id := b.create("v", 0, nil, c)
	target := b.path("t")
	sandbox.Must(t, b.stage(id, c))
	sandbox.Must(t, b.publish(id, target, c, false))
	cmd := exec.Command("cat")
	cmd.SysProcAttr = sandbox.Namespaces(0, 0)
	in, err := cmd.StdinPipe()
	sandbox.Must(t, err)
	sandbox.Must(t, cmd.Start())
	sandbox.Must(t, b.unpublish(id, target))
	sandbox.Must(t, b.unstage(id))
	sandbox.WantCode(t, b.delete(id), codes.FailedPrecondition, "another mount namespace")
	sandbox.Must(t, in.Close())
	sandbox.Must(t, cmd.Wait())
	sandbox.Must(t, b.delete(id))
}
