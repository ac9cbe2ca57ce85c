package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// owned returns the owner and the mode of a file, or of a symbolic link itself.
func owned(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	check(t, unix.Lstat(path, &st))
	return fmt.Sprintf("%d:%d %04o", st.Uid, st.Gid, st.Mode&0o7777)
}

func quiet(int) {}

// TestOwn checks that Own makes exactly the requested changes to the root and, if requested, to all
// files below. Own must change symbolic links themselves. It must not change files outside the
// tree, or files that another mount hides.
func TestOwn(t *testing.T) {
	base := tempDir(t)
	root, outside := mkdir(t, base, "root"), write(t, base+"/outside", "x")
	mountFS(t, "tmpfs", "t", root, 0, "mode=755")
	sub := mkdir(t, root, "sub")
	hidden := mkdir(t, root, "hidden")
	write(t, hidden+"/under", "x")
	mountFS(t, "tmpfs", "t", hidden, 0, "mode=700")
	write(t, hidden+"/other", "x")
	check(t, os.Chmod(write(t, sub+"/plain", "x"), 0o644))
	check(t, os.Chmod(write(t, sub+"/program", "x"), 0o4755))
	check(t, os.Symlink(outside, sub+"/link"))
	check(t, unix.Mkfifo(sub+"/fifo", 0o600))
	was := map[string]string{hidden: owned(t, hidden), hidden + "/other": owned(t, hidden+"/other"), outside: owned(t, outside)}
	h, ctx := newHost(t), context.Background()

	check(t, h.Own(ctx, root, Ownership{GID: new(uint32(7))}, quiet))
	if got := owned(t, root) + ", " + owned(t, sub); got != "0:7 0755, 0:0 0755" {
		t.Errorf("the group of the root alone: %s", got)
	}
	check(t, h.Own(ctx, root, Ownership{UID: new(uint32(5)), GID: new(uint32(6)), Mode: new(uint32(0o2770)), Recursive: true}, quiet))
	for path, want := range map[string]string{
		root: "5:6 2770", sub: "5:6 2770", sub + "/plain": "5:6 0660", sub + "/program": "5:6 0770", sub + "/fifo": "5:6 0660", sub + "/link": "5:6 0777",
	} {
		if got := owned(t, path); got != want {
			t.Errorf("%s has %s, not %s", path, got, want)
		}
	}
	for path, want := range was {
		if got := owned(t, path); got != want {
			t.Errorf("%s, which is not of this mount, has %s, not %s", path, got, want)
		}
	}
	check(t, unix.Unmount(hidden, 0))
	if got := owned(t, hidden+"/under"); !strings.HasPrefix(got, "0:0") {
		t.Errorf("what another mount hid has %s", got)
	}
}

// TestOwnDefault checks that Own gives a default owner only to a root directory of root:root. Any
// other root directory gets only the requested mode.
func TestOwnDefault(t *testing.T) {
	root := tempDir(t)
	check(t, os.Chmod(root, 0o755))
	h := newHost(t)
	own := func(o Ownership) {
		t.Helper()
		o.UID, o.GID, o.Default = new(uint32(5)), new(uint32(6)), true
		check(t, h.Own(context.Background(), root, o, quiet))
	}
	for _, tt := range []struct {
		uid, gid int
		mode     *uint32
		want     string
	}{
		{0, 0, nil, "5:6 0755"},
		{5, 6, nil, "5:6 0755"},
		{7, 0, nil, "7:0 0755"},
		{0, 7, nil, "0:7 0755"},
		{7, 7, new(uint32(0o750)), "7:7 0750"},
		{0, 0, new(uint32(0o770)), "5:6 0770"},
	} {
		check(t, os.Chown(root, tt.uid, tt.gid))
		own(Ownership{Mode: tt.mode})
		if got := owned(t, root); got != tt.want {
			t.Errorf("a root of %d:%d has %s, not %s", tt.uid, tt.gid, got, tt.want)
		}
	}
}

// TestOwnMatches checks that Own changes no files if the root already has the requested owner.
func TestOwnMatches(t *testing.T) {
	root := tempDir(t)
	file := write(t, root+"/file", "x")
	check(t, os.Chown(root, 5, 0))
	var st unix.Stat_t
	check(t, unix.Stat(root, &st))
	before := st.Ctim
	h := newHost(t)
	check(t, h.Own(context.Background(), root, Ownership{UID: new(uint32(5)), Recursive: true}, quiet))
	if got := owned(t, file); !strings.HasPrefix(got, "0:") {
		t.Errorf("a file has %s", got)
	}
	if check(t, unix.Stat(root, &st)); st.Ctim != before {
		t.Error("the root was changed")
	}
}

// countdown is a context that ends after the given number of calls of Err.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestOwnCutShort checks that an interrupted walk does not change the root, so that the next walk
// visits all files.
func TestOwnCutShort(t *testing.T) {
	root := tempDir(t)
	for i := range 100 {
		write(t, fmt.Sprintf("%s/%d", root, i), "")
	}
	w := &walk{ctx: &countdown{context.Background(), 10}, want: Ownership{UID: new(uint32(5)), Recursive: true}}
	if err := w.own(root); !errors.Is(err, context.Canceled) || w.files.Load() != 10 {
		t.Fatalf("after %d files: %v", w.files.Load(), err)
	}
	if got := owned(t, root); !strings.HasPrefix(got, "0:") {
		t.Errorf("the root has %s", got)
	}
	check(t, newHost(t).Own(context.Background(), root, w.want, quiet))
	entries, err := filepath.Glob(root + "/*")
	check(t, err)
	for _, path := range append(entries, root) {
		if got := owned(t, path); !strings.HasPrefix(got, "5:") {
			t.Fatalf("%s has %s", path, got)
		}
	}
}

// TestOwnHung checks that Own returns within its time limit if a file system hangs. If a file
// system refuses a change, the error must name the path.
func TestOwnHung(t *testing.T) {
	dir := mkdir(t, tempDir(t), "m")
	f := serveFuse(t, dir, false)
	see(t, dir)
	f.sleep()
	h := boundedHost(t, time.Second)
	err := h.Own(context.Background(), dir, Ownership{UID: new(uint32(5)), Recursive: true}, quiet)
	var hung *HungError
	if !errors.As(err, &hung) || hung.Path != dir {
		t.Errorf("of what hangs: %v", err)
	}
	f.wake()
	await(t, "the walk to return", func() bool { return h.gate.outstanding() == 0 })

	ro := mkdir(t, tempDir(t), "ro")
	mountFS(t, "tmpfs", "t", ro, unix.MS_RDONLY, "")
	if err := h.Own(context.Background(), ro, Ownership{UID: new(uint32(5))}, quiet); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), ro) {
		t.Errorf("of what is read-only: %v", err)
	}
	if err := h.Own(context.Background(), ro+"/none", Ownership{UID: new(uint32(5))}, quiet); !errors.Is(err, unix.ENOENT) {
		t.Errorf("of what is not there: %v", err)
	}
}

// TestOwnPrepared changes a tree that its previous owner prepared as a trap. The tree contains
// set-group-ID programs, access control lists, and more nested directories than a process may have
// open files.
func TestOwnPrepared(t *testing.T) {
	root := mkdir(t, tempDir(t), "root")
	trap := write(t, root+"/trap", "x")
	check(t, os.Chmod(trap, 0o700|os.ModeSetgid))
	acl := []byte("\x02\x00\x00\x00" + // version 2, and an entry that gives user 1234 all permissions
		"\x01\x00\x07\x00\xff\xff\xff\xff\x02\x00\x07\x00\xd2\x04\x00\x00\x04\x00\x00\x00\xff\xff\xff\xff" +
		"\x10\x00\x07\x00\xff\xff\xff\xff\x20\x00\x00\x00\xff\xff\xff\xff")
	shared := write(t, root+"/shared", "x")
	for _, path := range []string{root, shared} {
		check(t, unix.Setxattr(path, "system.posix_acl_access", acl, 0))
	}
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	check(t, err)
	for range 1200 {
		check(t, unix.Mkdirat(fd, "d", 0o700))
		below, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		check(t, errors.Join(err, unix.Close(fd)))
		fd = below
	}
	var deepest unix.Stat_t
	check(t, newHost(t).Own(context.Background(), root, Ownership{GID: new(uint32(7)), Recursive: true}, quiet))
	check(t, errors.Join(unix.Fstat(fd, &deepest), unix.Close(fd)))
	if deepest.Gid != 7 {
		t.Errorf("the deepest directory belongs to group %d", deepest.Gid)
	}
	if got := owned(t, trap); got != "0:7 0700" {
		t.Errorf("the program has %s", got)
	}
	for _, path := range []string{root, shared} {
		if _, err := unix.Getxattr(path, "system.posix_acl_access", nil); !errors.Is(err, unix.ENODATA) {
			t.Errorf("%s still has an access control list: %v", path, err)
		}
	}
	// A root with the right group and an access control list must be changed again.
	check(t, os.Chown(shared, 0, 0))
	check(t, unix.Setxattr(root, "system.posix_acl_access", acl, 0))
	check(t, newHost(t).Own(context.Background(), root, Ownership{GID: new(uint32(7)), Recursive: true}, quiet))
	if got := owned(t, shared); got != "0:7 0700" {
		t.Errorf("below a root with a list a file has %s", got)
	}
}
