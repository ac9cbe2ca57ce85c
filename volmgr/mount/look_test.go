package mount

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

// hosts returns a Host for this kernel, one for a kernel without statmount, and one for a kernel
// whose statx reports neither mount roots nor mount ids.
func hosts(t testing.TB) (now, old, older *Host) {
	now, old, older = newHost(t), newHost(t), newHost(t)
	old.noStatmount = true
	older.noMountRoot = true
	return now, old, older
}

// see looks at a path with a Host for each kind of kernel, and checks that the results agree.
func see(t testing.TB, path string) volume.Sight {
	t.Helper()
	now, old, older := hosts(t)
	s := now.Look(context.Background(), path)
	if got := old.Look(context.Background(), path); got != s {
		t.Errorf("by mountinfo, %q is %+v, by statmount %+v", path, got, s)
	}
	less := s
	less.Identity.ID = 0
	if got := older.Look(context.Background(), path); got != less {
		t.Errorf("by path alone, %q is %+v, by statmount %+v", path, got, less)
	}
	if s.Seen == volume.SeenMount && (s.Identity.Namespace == 0 || s.Identity.Boot == "" || s.Identity.ID == 0 || s.Identity.Device == "" || s.Identity.Root == "" || s.Identity.FSType == "") {
		t.Errorf("identity of %q has gaps: %+v", path, s.Identity)
	}
	return s
}

func TestLook(t *testing.T) {
	dir := tempDir(t)
	ext4 := loop(t, dir, 8<<20, "mkfs.ext4", "-q")
	at := func(t *testing.T) string { return mkdir(t, dir, strings.ReplaceAll(t.Name(), "/", "-")) }
	tests := []struct {
		name   string
		make   func(t *testing.T) string // prepares a mount and returns the path to look at
		seen   volume.Seen
		fstype string
		root   string
		ro     bool
		detail string
	}{
		{name: "missing", make: func(*testing.T) string { return dir + "/no/such" }},
		{name: "plain directory", make: at},
		{name: "below a file", make: func(t *testing.T) string { return write(t, at(t)+"/f", "") + "/x" }},
		{name: "below a mount", make: func(t *testing.T) string {
			d := at(t)
			mountFS(t, "tmpfs", "t", d, 0, "")
			return mkdir(t, d, "sub")
		}},
		{name: "link to a mount", make: func(t *testing.T) string {
			d := at(t)
			mountFS(t, "tmpfs", "t", mkdir(t, d, "m"), 0, "")
			check(t, os.Symlink(d+"/m", d+"/l"))
			return d + "/l/"
		}},
		{name: "tmpfs", seen: volume.SeenMount, fstype: "tmpfs", root: "/", make: func(t *testing.T) string {
			d := at(t)
			mountFS(t, "tmpfs", "t", d, 0, "")
			return d
		}},
		{name: "ext4", seen: volume.SeenMount, fstype: "ext4", root: "/", make: func(t *testing.T) string {
			d := at(t)
			mountFS(t, "ext4", ext4, d, 0, "")
			return d
		}},
		{name: "bind of a part", seen: volume.SeenMount, fstype: "tmpfs", root: "/a b", make: func(t *testing.T) string {
			d := at(t)
			mountFS(t, "tmpfs", "t", mkdir(t, d, "m"), 0, "")
			bindAt(t, mkdir(t, d, "m/a b"), mkdir(t, d, "b"))
			return d + "/b"
		}},
		{name: "through a link", seen: volume.SeenMount, fstype: "tmpfs", root: "/", make: func(t *testing.T) string {
			d := at(t)
			mountFS(t, "tmpfs", "t", mkdir(t, d, "r/m"), 0, "")
			check(t, os.Symlink("r", d+"/l"))
			return d + "/l/m"
		}},
		{name: "read-only file system", seen: volume.SeenMount, fstype: "tmpfs", root: "/", ro: true, make: func(t *testing.T) string {
			d := at(t)
			mountFS(t, "tmpfs", "t", d, unix.MS_RDONLY, "")
			check(t, unix.Mount("", d, "", unix.MS_REMOUNT|unix.MS_BIND, "")) // makes the mount writable, while its file system stays read-only
			return d
		}},
		{name: "read-only mount", seen: volume.SeenMount, fstype: "tmpfs", root: "/", ro: true, make: func(t *testing.T) string {
			d := at(t)
			mountFS(t, "tmpfs", "t", d, 0, "")
			check(t, unix.Mount("", d, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
			return d
		}},
		{name: "stacked", seen: volume.SeenMount, fstype: "ramfs", root: "/", make: func(t *testing.T) string {
			d := at(t)
			mountFS(t, "tmpfs", "t", d, 0, "")
			mountFS(t, "ramfs", "t", d, 0, "")
			return d
		}},
		{name: "file", seen: volume.SeenMount, fstype: "tmpfs", root: "/f", make: func(t *testing.T) string {
			d := at(t)
			mountFS(t, "tmpfs", "t", mkdir(t, d, "m"), 0, "")
			bindAt(t, write(t, d+"/m/f", "x"), write(t, d+"/g", ""))
			return d + "/g"
		}},
		{name: "block device", seen: volume.SeenMount, fstype: "devtmpfs", root: strings.TrimPrefix(ext4, "/dev"), make: func(t *testing.T) string {
			g := write(t, at(t)+"/g", "")
			bindAt(t, ext4, g)
			return g
		}},
		{name: "fifo", seen: volume.SeenMount, fstype: "tmpfs", root: "/p", make: func(t *testing.T) string {
			d := at(t)
			mountFS(t, "tmpfs", "t", mkdir(t, d, "m"), 0, "")
			check(t, unix.Mkfifo(d+"/m/p", 0o600))
			bindAt(t, d+"/m/p", write(t, d+"/g", ""))
			return d + "/g"
		}},
		{name: "deleted source", seen: volume.SeenMount, fstype: "tmpfs", root: "/gone", detail: "the source of the mount was deleted", make: func(t *testing.T) string {
			d := at(t)
			mountFS(t, "tmpfs", "t", mkdir(t, d, "m"), 0, "")
			bindAt(t, mkdir(t, d, "m/gone"), mkdir(t, d, "b"))
			check(t, os.Remove(d+"/m/gone"))
			return d + "/b"
		}},
		{name: "fuse with a subtype", seen: volume.SeenMount, fstype: "fuse", root: "/", make: func(t *testing.T) string {
			d := at(t)
			serveFuse(t, d, false)
			return d
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := see(t, tt.make(t))
			if s.Seen != tt.seen || s.Identity.FSType != tt.fstype || s.Identity.Root != tt.root || s.ReadOnly != tt.ro || s.Detail != tt.detail {
				t.Errorf("got %+v", s)
			}
		})
	}
	if s := newHost(t).Look(context.Background(), "a/b"); s.Seen != volume.SeenError {
		t.Errorf("relative path: %+v", s)
	}
}

func TestLookAtOddNames(t *testing.T) {
	dir := tempDir(t)
	for _, name := range []string{"a b", "a\tb", "a\nb", `a\b`, `a\040b`, "a#b", "\xff\xfe", "a//deleted", "ü", "-", "x (deleted)"} {
		src, at := mkdir(t, dir, "s", name), mkdir(t, dir, "t", name)
		bindAt(t, src, at)
		s := see(t, at)
		if s.Seen != volume.SeenMount || !strings.HasSuffix(s.Identity.Root, filepath.Clean("/s/"+name)) {
			t.Errorf("%q: %+v", name, s)
		}
		entries, err := newHost(t).Under(at)
		check(t, err)
		if len(entries) != 1 || entries[0].Path != at || entries[0].Identity.Root != s.Identity.Root {
			t.Errorf("%q in the table: %+v", name, entries)
		}
		check(t, newHost(t).Unmount(context.Background(), at, Plain))
		if s := see(t, at); s.Seen != volume.SeenNothing {
			t.Errorf("%q after unmount: %+v", name, s)
		}
	}
}

func TestIdentityIsOfOneMounting(t *testing.T) {
	dir := tempDir(t)
	src, a, b := mkdir(t, dir, "src"), mkdir(t, dir, "a"), mkdir(t, dir, "b")
	mountFS(t, "tmpfs", "t", src, 0, "")
	bindAt(t, src, a)
	bindAt(t, src, b)
	first, other := see(t, a), see(t, b)
	if first.Identity == other.Identity {
		t.Errorf("two binds have one identity: %+v", first.Identity)
	}
	if again := see(t, a); again != first {
		t.Errorf("one mount, two identities: %+v, %+v", first, again)
	}
	check(t, unix.Mount(a, mkdir(t, dir, "c"), "", unix.MS_MOVE, ""))
	if moved := see(t, dir+"/c"); moved != first {
		t.Errorf("moved, it is another: %+v, %+v", first, moved)
	}
	check(t, unix.Unmount(dir+"/c", 0))
	bindAt(t, src, a)
	if again := see(t, a); again.Identity == first.Identity {
		t.Errorf("mounted anew, it is the same: %+v", again.Identity)
	}
}

func TestLookAtTheDead(t *testing.T) {
	for _, noOpendir := range []bool{false, true} {
		dir := mkdir(t, tempDir(t), "m")
		f := serveFuse(t, dir, noOpendir)
		alive := see(t, dir)
		if alive.Seen != volume.SeenMount {
			t.Fatalf("alive: %+v", alive)
		}
		f.die()
		s := see(t, dir)
		if s.Seen != volume.SeenDead || s.Identity != alive.Identity || !strings.Contains(s.Detail, "transport endpoint is not connected") {
			t.Errorf("dead: %+v", s)
		}
		// The state of a file below a dead mount is unknown, so Look must not report the file as a
		// dead mount.
		if s := see(t, dir+"/sub/x"); s.Seen != volume.SeenError {
			t.Errorf("below the dead: %+v", s)
		}
		// Another mount covers the dead mount. Look must report only the upper mount.
		mountFS(t, "tmpfs", "t", dir, 0, "")
		if s := see(t, dir); s.Seen != volume.SeenMount || s.Identity.FSType != "tmpfs" {
			t.Errorf("over the dead: %+v", s)
		}
	}
}

// TestLookAtAnotherUsers looks at a FUSE mount that refuses all users except its owner, even root.
func TestLookAtAnotherUsers(t *testing.T) {
	dir := mkdir(t, tempDir(t), "m")
	openFuse(t, dir, ",user_id=4711")
	now, old, older := hosts(t)
	for _, h := range []*Host{now, old, older} {
		s := h.Look(context.Background(), dir)
		if s.Seen != volume.SeenError || s.Identity.FSType != "fuse" || (s.Identity.ID != 0) != (h == now) || !strings.Contains(s.Detail, "permission denied") {
			t.Errorf("got %+v", s)
		}
	}
}

// TestLookAtShutDown looks at a file system that was shut down. Even the first statx fails there.
func TestLookAtShutDown(t *testing.T) {
	dir := tempDir(t)
	at := mkdir(t, dir, "m")
	mountFS(t, "xfs", loop(t, dir, 320<<20, "mkfs.xfs", "-q"), at, 0, "")
	alive := see(t, at)
	f, err := os.Open(at)
	check(t, err)
	check(t, unix.IoctlSetPointerInt(int(f.Fd()), 0x8004587d, 2))
	check(t, f.Close())
	now, old, older := hosts(t)
	for _, h := range []*Host{now, old, older} {
		s := h.Look(context.Background(), at)
		if h != now { // older kernels do not provide the unique id after an error of statx
			s.Identity.ID = alive.Identity.ID
		}
		if s.Seen != volume.SeenDead || s.Identity != alive.Identity {
			t.Errorf("shut down: %+v, before %+v", s, alive)
		}
	}
}

func TestLookWhenTheDeviceIsGone(t *testing.T) {
	dir := tempDir(t)
	ext4 := loop(t, dir, 8<<20, "mkfs.ext4", "-q")
	at, node := mkdir(t, dir, "m"), write(t, dir+"/node", "")
	mountFS(t, "ext4", ext4, at, 0, "")
	bindAt(t, ext4, node)
	h := newHost(t)
	sys := mkdir(t, dir, "sys")
	h.sysfs = sysfs(sys) // an empty directory does not prove that the device is gone
	for _, path := range []string{at, node} {
		if s := h.Look(context.Background(), path); s.Seen != volume.SeenMount {
			t.Errorf("no sysfs: %+v", s)
		}
	}
	mkdir(t, sys, "dev/block")
	for _, path := range []string{at, node} {
		s := h.Look(context.Background(), path)
		if s.Seen != volume.SeenDead || !strings.Contains(s.Detail, number(t, ext4)) {
			t.Errorf("device gone: %+v", s)
		}
	}
	// The entry in sysfs is sufficient, even if it is a link to a missing file.
	check(t, os.Symlink("nowhere", sys+"/dev/block/"+number(t, ext4)))
	for _, path := range []string{at, node} {
		if s := h.Look(context.Background(), path); s.Seen != volume.SeenMount {
			t.Errorf("device there: %+v", s)
		}
	}
}
