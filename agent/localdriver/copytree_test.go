package localdriver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// describeTree lists all entries of a tree, with their paths relative to the root and their
// properties.
func describeTree(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	sandbox.Must(t, filepath.WalkDir(root, func(p string, _ os.DirEntry, err error) error {
		if err == nil {
			all = append(all, fmt.Sprintf("%q %s", strings.TrimPrefix(p, root), sandbox.DescribeEntry(t, p)))
		}
		return err
	}))
	return all
}

// acl returns an access control list in the kernel's format, with an entry for the given user.
func acl(user uint32) []byte {
	const nobodyInParticular = 0xffffffff
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{0x01, 7, nobodyInParticular}, {0x02, 6, user}, {0x04, 5, nobodyInParticular}, {0x10, 7, nobodyInParticular}, {0x20, 4, nobodyInParticular}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// deepen makes n nested directories, whose path is longer than the kernel permits.
func deepen(t *testing.T, root string, n int) {
	t.Helper()
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	sandbox.Must(t, err)
	for range n {
		sandbox.Must(t, unix.Mkdirat(fd, "d", 0o755))
		next, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		sandbox.Must(t, errors.Join(err, unix.Close(fd)))
		fd = next
	}
	sandbox.Must(t, unix.Close(fd))
}

// oddTree fills a directory with an entry of each file type and with unusual attributes.
func oddTree(t *testing.T, data string) {
	t.Helper()
	at := func(elem ...string) string { return filepath.Join(append([]string{data}, elem...)...) }
	sandbox.Mkdir(t, at("sub", "deep"))
	sandbox.Write(t, at("sub", "file"), "text")
	sandbox.Must(t, os.Link(at("sub", "file"), at("sub", "deep", "hard")))
	sandbox.Must(t, os.Link(at("sub", "file"), at("again")))
	sandbox.Must(t, os.Symlink("/etc/passwd", at("link")))
	sandbox.Must(t, os.Symlink("nowhere", at("dangling")))
	sandbox.Must(t, os.Link(at("dangling"), at("dangling too")))
	sandbox.Must(t, unix.Mkfifo(at("fifo"), 0o640))
	sandbox.Must(t, unix.Mknod(at("sock"), unix.S_IFSOCK|0o600, 0))
	sandbox.Must(t, unix.Mknod(at("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	sandbox.Must(t, unix.Mknod(at("disk"), unix.S_IFBLK|0o660, int(unix.Mkdev(7, 200))))
	sandbox.Write(t, at("new\nline \xff"), "odd")
	sandbox.Write(t, at("suid"), "#!/bin/true")
	sandbox.Must(t, os.Chown(at("suid"), 1234, 4321))
	sandbox.Must(t, os.Chmod(at("suid"), 0o755|os.ModeSetuid|os.ModeSetgid))
	sandbox.Must(t, os.Lchown(at("link"), 55, 66))
	sandbox.Must(t, unix.Lsetxattr(at("suid"), "security.capability", []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	sandbox.Must(t, unix.Lsetxattr(at("sub", "file"), "user.note", []byte(strings.Repeat("long ", 60)), 0))
	sandbox.Must(t, unix.Lsetxattr(at("link"), "trusted.note", []byte("on a link"), 0))
	sandbox.Write(t, at("shared"), "acl")
	sandbox.Must(t, unix.Lsetxattr(at("shared"), "system.posix_acl_access", acl(77), 0))
	sandbox.Must(t, unix.Lsetxattr(at("sub"), "system.posix_acl_default", acl(88), 0))
	f, err := os.Create(at("sparse"))
	sandbox.Must(t, err)
	_, err = f.WriteAt([]byte("start"), 0)
	sandbox.Must(t, err)
	_, err = f.WriteAt([]byte("end"), 100*mib)
	sandbox.Must(t, errors.Join(err, f.Truncate(200*mib), f.Close()))
	sandbox.Must(t, os.Chmod(at("sub", "deep"), 0o1711))
	old := []unix.Timespec{{Sec: 1e9, Nsec: 7}, {Sec: 2e9, Nsec: 9}}
	sandbox.Must(t, filepath.WalkDir(data, func(p string, _ os.DirEntry, err error) error {
		return errors.Join(err, unix.UtimesNanoAt(unix.AT_FDCWD, p, old, unix.AT_SYMLINK_NOFOLLOW))
	}))
	sandbox.Must(t, os.Chmod(data, 0o2775))
	sandbox.Must(t, unix.UtimesNanoAt(unix.AT_FDCWD, data, old, 0))
}

// TestCopyTree copies a tree with an entry of each file type, and compares the copy with the
// source. It runs on filesystems that can share data and on filesystems that cannot.
func TestCopyTree(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		b := newBenchOn(t, fsType)
		c := mountCap(writer, "")
		id := b.create("v", 0, nil, c)
		oddTree(t, b.data(id))
		want := describeTree(t, b.data(id))
		dup := b.copyOf("copy", fromSnap(b.snap("s", id)), c)
		got := describeTree(t, b.data(dup))
		for _, line := range want {
			if !slices.Contains(got, line) {
				t.Errorf("%s: missing in the copy: %s", fsType, line)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: the copy has %d entries, not %d", fsType, len(got), len(want))
		}
		sandbox.WantContent(t, filepath.Join(b.data(dup), "sub", "deep", "hard"), "text")
		f, err := os.Open(filepath.Join(b.data(dup), "sparse"))
		sandbox.Must(t, err)
		end := make([]byte, 3)
		_, err = f.ReadAt(end, 100*mib)
		sandbox.Must(t, errors.Join(err, f.Close()))
		var st unix.Stat_t
		sandbox.Must(t, unix.Stat(f.Name(), &st))
		if string(end) != "end" || st.Size != 200*mib || st.Blocks*512 > mib {
			t.Errorf("%s: the sparse file ends with %q, has %d bytes and takes %d", fsType, end, st.Size, st.Blocks*512)
		}
		sandbox.WantGone(t, filepath.Join(b.state, store.DirVolumes, dup, "links"))
	}
}

// TestCopyStaysInside plants links and mounts that could lead a copy out of the volume.
func TestCopyStaysInside(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	id := b.create("v", 0, nil, c)
	out := sandbox.Mkdir(t, b.path("out"))
	sandbox.Write(t, filepath.Join(out, "f"), "secret")
	point := sandbox.Mkdir(t, b.data(id), "a", "mnt")
	sandbox.Must(t, unix.Mount(out, point, "", unix.MS_BIND, ""))
	_, err := b.CreateSnapshot(background(), snapReq("s", id))
	sandbox.WantCode(t, err, codes.FailedPrecondition, "mounted on", "mnt", "unmount it first")
	sandbox.Must(t, unix.Unmount(point, 0))
	sandbox.Write(t, filepath.Join(b.data(id), "file"), "")
	sandbox.Must(t, unix.Mount(filepath.Join(out, "f"), filepath.Join(b.data(id), "file"), "", unix.MS_BIND, ""))
	_, err = b.CreateSnapshot(background(), snapReq("s", id))
	sandbox.WantCode(t, err, codes.FailedPrecondition, "mounted on", "file")
	sandbox.Must(t, unix.Unmount(filepath.Join(b.data(id), "file"), 0))
	b.wantNothingHalf()

	sandbox.Must(t, os.Symlink(out, filepath.Join(b.data(id), "dir")))
	b.snap("s", id)
}

// TestCopyDeepTree copies a tree whose paths exceed the kernel's maximum length. A tree that is too
// deep for the driver must cause a clear error.
func TestCopyDeepTree(t *testing.T) {
	const most = 2048 // the maximum depth, in directories
	b := newBench(t)
	c := mountCap(writer, "")
	fine, deep := b.create("fine", 0, nil, c), b.create("deep", 0, nil, c)
	deepen(t, b.data(fine), most)
	deepen(t, b.data(deep), most+1)
	dup := b.copyOf("copy", fromVolume(fine), c)
	fd, err := unix.Open(b.data(dup), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	sandbox.Must(t, err)
	for range most {
		next, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		sandbox.Must(t, errors.Join(err, unix.Close(fd)))
		fd = next
	}
	sandbox.Must(t, unix.Close(fd))
	_, err = b.CreateVolume(background(), copyReq("deeper", fromVolume(deep), c))
	sandbox.WantCode(t, err, codes.FailedPrecondition, "too deep", "d/d")
	if len(err.Error()) > 1000 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
	b.wantNothingHalf()
}

// TestCopyNeedsSpace checks copies that do not fit on the disk. If the driver can tell before the
// copy starts, it must refuse the copy. If the space runs out during the copy, the driver must
// remove the incomplete copy.
func TestCopyNeedsSpace(t *testing.T) {
	b := newBench(t)
	b.stop()
	sandbox.Tmpfs(t, b.state, "size=32m,nr_inodes=100")
	t.Cleanup(func() { b.stop() })
	b.start()
	c := mountCap(writer, "")
	big, many := b.create("big", 0, nil, c), b.create("many", 0, nil, c)
	sandbox.Must(t, os.WriteFile(filepath.Join(b.data(big), "f"), make([]byte, 20*mib), 0o600))
	_, err := b.CreateSnapshot(background(), snapReq("s", big))
	sandbox.WantCode(t, err, codes.ResourceExhausted, "20971520", "free")
	_, err = b.CreateVolume(background(), copyReq("c", fromVolume(big), c))
	sandbox.WantCode(t, err, codes.ResourceExhausted, "20971520")
	sandbox.Must(t, os.Remove(filepath.Join(b.data(big), "f")))
	for i := range 50 {
		sandbox.Write(t, filepath.Join(b.data(many), fmt.Sprint(i)), "x")
	}
	_, err = b.CreateSnapshot(background(), snapReq("s", many))
	sandbox.WantCode(t, err, codes.ResourceExhausted, "no space")
	if loopdev.CheckLoopControl() == nil {
		img := b.create("img", 20*mib, image(""), blockCap(writer))
		sandbox.Must(t, os.WriteFile(filepath.Join(b.state, store.DirVolumes, img, store.ImageFile), make([]byte, 20*mib), 0o600))
		_, err = b.CreateSnapshot(background(), snapReq("i", img))
		sandbox.WantCode(t, err, codes.ResourceExhausted, "20971520", "free")
	}
	b.wantNothingHalf()
	if got := b.listed(); len(got) > 3 {
		t.Errorf("listed %v", got)
	}
}
