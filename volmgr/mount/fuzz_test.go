package mount

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/proc"

	"golang.org/x/sys/unix"
)

// hostile contains names of directories or sources that may confuse a parser of mount tables.
var hostile = []string{
	"/srv/a", "/a b", "/a\tb\nc", `/a\040b`, "/a\rb", "/a\vb\fc", "/a\u00a0b\u2003c\u0085d", "/- - ext4 /dev/sda1 rw", "/x\n99 1 8:1 / /fake rw - ext4 /dev/sda1 rw",
	"/\xff\xfe", "/#", "", "-", "/x//deleted", "/a.b.c", "/\x1b[2J",
}

// escaped returns a name as the kernel writes it in a mount table. The kernel escapes the backslash
// and the characters in special. It escapes the hash sign only in types and sources.
func escaped(name, special string) string {
	var b strings.Builder
	for i := range len(name) {
		if strings.IndexByte(special, name[i]) >= 0 {
			fmt.Fprintf(&b, `\%03o`, name[i])
			continue
		}
		b.WriteByte(name[i])
	}
	return b.String()
}

// FuzzMountNames checks that a directory with any name appears in the parsed table as exactly one
// mount. The parser must return the full name, and it must not lose the lines before and after. It
// may truncate a name only if the name is longer than system calls accept.
func FuzzMountNames(f *testing.F) {
	for i, name := range hostile {
		f.Add(name, name, name, "sub", uint16(1))
		f.Add("/", "/m", "src", name, uint16(1))
		f.Add("/", "/"+name, hostile[len(hostile)-1-i], "", uint16(8000)) // the path is too long for one system call, so the test enters it in several steps
	}
	f.Fuzz(func(t *testing.T, root, point, source, sub string, times uint16) {
		if strings.Contains(root+point+source+sub, "\x00") || len(point)*int(times) > 1<<18 {
			return
		}
		point = strings.Repeat(point, int(times))
		const path, text = " \t\n\\", " \t\n\\#"
		table := fmt.Sprintf("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n36 1 0:52 %s %s rw,nosuid shared:1 - fuse.%s %s ro,user_id=0\n37 36 8:2 / /z ro - ext4 /dev/sdb rw\n",
			escaped(root, path), escaped(point, path), escaped(sub, text), escaped(source, text))
		got, err := proc.ParseMounts(strings.NewReader(table), nil, nil)
		if err != nil || len(got) != 3 || got[0].Mountpoint != "/" || got[2].Mountpoint != "/z" || got[2].Parent != 36 {
			t.Fatalf("%d mounts, %v", len(got), err)
		}
		m := got[1]
		p := (&Host{}).fromInfo(m)
		if m.ID != 36 || m.Parent != 1 || p.id.Device != "0:52" || p.id.FSType != "fuse" || !p.readOnly || !p.shared {
			t.Errorf("the mount is %+v", m)
		}
		for _, c := range []struct {
			what, is, want string
			most           int
		}{
			{"root", m.Root, root, unix.PathMax}, {"mount point", m.Mountpoint, point, unix.PathMax}, {"source", m.Source, source, unix.PathMax / 2},
		} {
			if len(c.want) < c.most && c.is != c.want || !strings.HasPrefix(c.is, c.want[:min(len(c.want), c.most)]) {
				t.Errorf("the %s %.200q became %.200q", c.what, c.want, c.is)
			}
		}
	})
}

// replyOf builds a reply of statmount(2) that contains the given strings.
func replyOf(fields map[int]string) statmountReply {
	r := append(statmountReply(nil), make([]byte, strAt)...)
	binary.NativeEndian.PutUint64(r[atMask:], math.MaxUint64)
	for _, at := range []int{atFSType, atMntRoot, atMntPoint, atSBSource} {
		binary.NativeEndian.PutUint32(r[at:], uint32(len(r)-strAt))
		r = append(append(r, fields[at]...), 0)
	}
	return r
}

// FuzzStatmount checks that the agent reads every name in the kernel's reply completely, and that
// an invalid reply causes no panic.
func FuzzStatmount(f *testing.F) {
	for _, name := range hostile {
		f.Add(name, name, name, []byte(name))
	}
	f.Add("/", "/m", "src", bytes.Repeat([]byte{0xff}, usualStat))
	f.Fuzz(func(t *testing.T, root, point, source string, raw []byte) {
		h := &Host{}
		if len(raw) >= strAt {
			_ = h.fromStatmount(raw)
		}
		if strings.Contains(root+point+source, "\x00") {
			return
		}
		p := h.fromStatmount(replyOf(map[int]string{atFSType: "ext4", atMntRoot: root, atMntPoint: point, atSBSource: source}))
		want, gone := strings.CutSuffix(root, "//deleted")
		if p.id.Root != want || p.deleted != gone || p.at != point || p.source != source || p.id.Device != "0:0" || p.id.FSType != "ext4" {
			t.Errorf("%q at %q from %q became %+v", root, point, source, p)
		}
	})
}

// FuzzCredentials checks that a process cannot choose a name that makes it look like a process of
// another user.
func FuzzCredentials(f *testing.F) {
	for _, name := range append(hostile, "x\nUid:\t0\t0\t0\t0\nCapEff:\tffffffffffffffff", "Uid:\t0 0 0 0") {
		f.Add(name, uint32(1000), uint64(enterCapabilities), []byte(name))
	}
	f.Fuzz(func(t *testing.T, name string, uid uint32, caps uint64, raw []byte) {
		_, _, _ = credentials(string(raw)) // credentials must not panic on any text
		status := fmt.Sprintf("Name:\t%s\nUmask:\t0022\nUid:\t0\t0\t0\t%d\nCapPrm:\t0\nCapEff:\t%016x\nCapBnd:\t0\n", escaped(name, "\n\\"), uid, caps)
		gotUID, gotCaps, err := credentials(status)
		if err != nil || gotUID != uid || gotCaps != caps {
			t.Errorf("%q: user %d, capabilities %x, %v", name, gotUID, gotCaps, err)
		}
	})
}

// TestLongMountPoint checks that the agent can read a table with a mount point that is longer than
// system calls accept.
func TestLongMountPoint(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	h, dir := newHost(t), t.TempDir()
	check(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { check(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	check(t, unix.Mount("long", deep(t, dir, 300), "tmpfs", 0, ""))
	entries, err := h.Under(dir)
	if err != nil || len(entries) != 2 || entries[1].Source != "long" || len(entries[1].Path) < unix.PathMax {
		t.Fatalf("%d mounts, %v", len(entries), err)
	}
	if users, err := h.DeviceUsers(t.Context(), numbered(entries[1].Identity.Device)); err != nil || len(users) == 0 {
		t.Errorf("users %.100q, %v", users, err)
	}
}

// deep makes nested directories and returns a short path to the innermost one.
func deep(t *testing.T, dir string, n int) string {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	check(t, err)
	for range n {
		name := strings.Repeat("d", 250)
		check(t, unix.Mkdirat(fd, name, 0o700))
		next, err := unix.Openat(fd, name, unix.O_PATH|unix.O_CLOEXEC, 0)
		check(t, err)
		closeFD(fd)
		fd = next
	}
	t.Cleanup(func() { closeFD(fd) })
	return fmt.Sprintf("/proc/self/fd/%d", fd)
}
