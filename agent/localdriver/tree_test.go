package localdriver

import (
	"context"
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

	"github.com/volagent/volagent/agent/localdriver/jobs"
)

// describeEntry describes all properties of one entry that a copy must keep.
func describeEntry(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	words := fmt.Sprintf("mode %o owner %d:%d rdev %d nlink %d mtime %d.%d", st.Mode, st.Uid, st.Gid, st.Rdev, st.Nlink,
		st.Mtim.Sec, st.Mtim.Nsec)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR: // the number of links depends on the filesystem
		words = strings.Replace(words, fmt.Sprintf("nlink %d", st.Nlink), "", 1)
	case unix.S_IFREG: // for other kinds, reading changes it
		words += fmt.Sprintf(" atime %d.%d", st.Atim.Sec, st.Atim.Nsec)
	}
	raw, err := readAll(func(b []byte) (int, error) { return unix.Llistxattr(path, b) })
	must(t, err)
	for _, name := range sorted(strings.FieldsFunc(string(raw), func(r rune) bool { return r == 0 })...) {
		value, err := readAll(func(b []byte) (int, error) { return unix.Lgetxattr(path, name, b) })
		must(t, err)
		words += fmt.Sprintf(" %s=%x", name, value)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		to, err := os.Readlink(path)
		must(t, err)
		words += " to " + to
	}
	return words
}

// describeTree lists a tree with names relative to its root.
func describeTree(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	must(t, filepath.WalkDir(root, func(p string, _ os.DirEntry, err error) error {
		if err == nil {
			all = append(all, fmt.Sprintf("%q %s", strings.TrimPrefix(p, root), describeEntry(t, p)))
		}
		return err
	}))
	return all
}

// acl returns an access control list in the kernel's format, with an entry for one user.
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

// deepen makes a chain of n directories, longer than a path can be.
func deepen(t *testing.T, root string, n int) {
	t.Helper()
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	for range n {
		must(t, unix.Mkdirat(fd, "d", 0o755))
		next, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, errors.Join(err, unix.Close(fd)))
		fd = next
	}
	must(t, unix.Close(fd))
}

// oddTree fills a directory with one entry of each kind.
func oddTree(t *testing.T, data string) {
	t.Helper()
	at := func(elem ...string) string { return filepath.Join(append([]string{data}, elem...)...) }
	mkdir(t, at("sub", "deep"))
	write(t, at("sub", "file"), "text")
	must(t, os.Link(at("sub", "file"), at("sub", "deep", "hard")))
	must(t, os.Link(at("sub", "file"), at("again")))
	must(t, os.Symlink("/etc/passwd", at("link")))
	must(t, os.Symlink("nowhere", at("dangling")))
	must(t, os.Link(at("dangling"), at("dangling too")))
	must(t, unix.Mkfifo(at("fifo"), 0o640))
	must(t, unix.Mknod(at("sock"), unix.S_IFSOCK|0o600, 0))
	must(t, unix.Mknod(at("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(t, unix.Mknod(at("disk"), unix.S_IFBLK|0o660, int(unix.Mkdev(7, 200))))
	write(t, at("new\nline \xff"), "odd")
	write(t, at("suid"), "#!/bin/true")
	must(t, os.Chown(at("suid"), 1234, 4321))
	must(t, os.Chmod(at("suid"), 0o755|os.ModeSetuid|os.ModeSetgid))
	must(t, os.Lchown(at("link"), 55, 66))
	must(t, unix.Lsetxattr(at("suid"), "security.capability", []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	must(t, unix.Lsetxattr(at("sub", "file"), "user.note", []byte(strings.Repeat("long ", 60)), 0))
	must(t, unix.Lsetxattr(at("link"), "trusted.note", []byte("on a link"), 0))
	write(t, at("shared"), "acl")
	must(t, unix.Lsetxattr(at("shared"), "system.posix_acl_access", acl(77), 0))
	must(t, unix.Lsetxattr(at("sub"), "system.posix_acl_default", acl(88), 0))
	f, err := os.Create(at("sparse"))
	must(t, err)
	_, err = f.WriteAt([]byte("start"), 0)
	must(t, err)
	_, err = f.WriteAt([]byte("end"), 100*mib)
	must(t, errors.Join(err, f.Truncate(200*mib), f.Close()))
	must(t, os.Chmod(at("sub", "deep"), 0o1711))
	old := []unix.Timespec{{Sec: 1e9, Nsec: 7}, {Sec: 2e9, Nsec: 9}}
	must(t, filepath.WalkDir(data, func(p string, _ os.DirEntry, err error) error {
		return errors.Join(err, unix.UtimesNanoAt(unix.AT_FDCWD, p, old, unix.AT_SYMLINK_NOFOLLOW))
	}))
	must(t, os.Chmod(data, 0o2775))
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, data, old, 0))
}

// TestCopyTree copies one entry of each kind and compares, both with copied and with shared data.
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
		wantContent(t, filepath.Join(b.data(dup), "sub", "deep", "hard"), "text")
		f, err := os.Open(filepath.Join(b.data(dup), "sparse"))
		must(t, err)
		end := make([]byte, 3)
		_, err = f.ReadAt(end, 100*mib)
		must(t, errors.Join(err, f.Close()))
		var st unix.Stat_t
		must(t, unix.Stat(f.Name(), &st))
		if string(end) != "end" || st.Size != 200*mib || st.Blocks*512 > mib {
			t.Errorf("%s: the sparse file ends with %q, has %d bytes and takes %d", fsType, end, st.Size, st.Blocks*512)
		}
		wantGone(t, filepath.Join(b.state, dirVolumes, dup, linksDir))
	}
}

// TestCopyStaysInside plants links and mounts that could lead a copy out of the volume.
func TestCopyStaysInside(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	id := b.create("v", 0, nil, c)
	out := mkdir(t, b.path("out"))
	write(t, filepath.Join(out, "f"), "secret")
	point := mkdir(t, b.data(id), "a", "mnt")
	must(t, unix.Mount(out, point, "", unix.MS_BIND, ""))
	_, err := b.CreateSnapshot(background(), snapReq("s", id))
	wantCode(t, err, codes.FailedPrecondition, "mounted on", "mnt", "unmount it first")
	must(t, unix.Unmount(point, 0))
	write(t, filepath.Join(b.data(id), "file"), "")
	must(t, unix.Mount(filepath.Join(out, "f"), filepath.Join(b.data(id), "file"), "", unix.MS_BIND, ""))
	_, err = b.CreateSnapshot(background(), snapReq("s", id))
	wantCode(t, err, codes.FailedPrecondition, "mounted on", "file")
	must(t, unix.Unmount(filepath.Join(b.data(id), "file"), 0))
	b.wantNothingHalf()

	// As in a race: the directory is a link when it is opened.
	must(t, os.Symlink(out, filepath.Join(b.data(id), "dir")))
	dir, err := os.Open(b.data(id))
	must(t, err)
	if _, err := openDir(int(dir.Fd()), "dir"); !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a link was opened: %v", err)
	}
	must(t, dir.Close())
	b.snap("s", id)
}

// TestCopyDeepTree copies a tree deeper than paths allow, and refuses a deeper one with a clear
// error.
func TestCopyDeepTree(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	fine, deep := b.create("fine", 0, nil, c), b.create("deep", 0, nil, c)
	deepen(t, b.data(fine), maxCopyDepth)
	deepen(t, b.data(deep), maxCopyDepth+1)
	dup := b.copyOf("copy", fromVolume(fine), c)
	fd, err := unix.Open(b.data(dup), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	for range maxCopyDepth {
		next, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, errors.Join(err, unix.Close(fd)))
		fd = next
	}
	must(t, unix.Close(fd))
	_, err = b.CreateVolume(background(), copyReq("deeper", fromVolume(deep), c))
	wantCode(t, err, codes.FailedPrecondition, "too deep", "d/d")
	if len(err.Error()) > 1000 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
	b.wantNothingHalf()
}

// TestCopyNeedsSpace checks that a copy that cannot fit is refused before it starts, and that one
// that runs out of space later is cleaned up.
func TestCopyNeedsSpace(t *testing.T) {
	b := newBench(t)
	b.stop()
	tmpfs(t, b.state, "size=32m,nr_inodes=100")
	t.Cleanup(func() { b.stop() })
	b.start()
	c := mountCap(writer, "")
	big, many := b.create("big", 0, nil, c), b.create("many", 0, nil, c)
	must(t, os.WriteFile(filepath.Join(b.data(big), "f"), make([]byte, 20*mib), 0o600))
	_, err := b.CreateSnapshot(background(), snapReq("s", big))
	wantCode(t, err, codes.ResourceExhausted, "20971520", "free")
	_, err = b.CreateVolume(background(), copyReq("c", fromVolume(big), c))
	wantCode(t, err, codes.ResourceExhausted, "20971520")
	must(t, os.Remove(filepath.Join(b.data(big), "f")))
	for i := range 50 {
		write(t, filepath.Join(b.data(many), fmt.Sprint(i)), "x")
	}
	_, err = b.CreateSnapshot(background(), snapReq("s", many))
	wantCode(t, err, codes.ResourceExhausted, "no space")
	if checkLoopControl() == nil {
		img := b.create("img", 20*mib, image(""), blockCap(writer))
		must(t, os.WriteFile(filepath.Join(b.state, dirVolumes, img, imageFile), make([]byte, 20*mib), 0o600))
		_, err = b.CreateSnapshot(background(), snapReq("i", img))
		wantCode(t, err, codes.ResourceExhausted, "20971520", "free")
	}
	b.wantNothingHalf()
	if got := b.listed(); len(got) > 3 {
		t.Errorf("listed %v", got)
	}
}

// TestCopyCancelled ends a copy of data through its context.
func TestCopyCancelled(t *testing.T) {
	dir := t.TempDir()
	src, err := os.Create(filepath.Join(dir, "src"))
	must(t, err)
	_, err = src.Write(make([]byte, mib))
	must(t, err)
	dst, err := os.Create(filepath.Join(dir, "dst"))
	must(t, err)
	ctx, cancel := context.WithCancel(background())
	p := &jobs.Progress{}
	must(t, copyData(ctx, src, dst, mib, p))
	if p.Done.Load() != mib {
		t.Errorf("the progress is %d", p.Done.Load())
	}
	cancel()
	if err := copyData(ctx, src, dst, mib, p); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	must(t, errors.Join(src.Close(), dst.Close()))
}
