package mount

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/fstab"
	"github.com/volagent/volagent/volmgr/suggest"
)

// hostile lists names that a parser could misread.
var hostile = []string{
	"data", "a b", "a\tb", "a\nb", `a\040b`, `a\`, "#", "a\u00a0b", "a\rb\vc\fd", "\xff\xfe", "größe\u2003x", "- - ext4", `"a,b"`, "100%", "%h", "-", ".", "[Mount]", "a/b", "", "a=b", "\x1b[2J",
}

// escaped escapes a name in the way that the kernel does in mount tables and libmount does in utab.
func escaped(name string) string {
	return strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(name)
}

// FuzzMountTable checks the parsers of the kernel's mount table and of libmount's table. They must
// find exactly the mounts in the tables, regardless of the names of the mounts.
func FuzzMountTable(f *testing.F) {
	for _, name := range hostile {
		f.Add("", name, name, "/a", []byte(name))
		f.Add(name, "a", name, "/"+name, []byte("1 2 3 / /a rw - "+name))
	}
	f.Fuzz(func(t *testing.T, root, point, source, other string, raw []byte) {
		_ = readTable(raw)                    // the call must not panic or hang
		_ = remembered(raw, point, mounted{}) // the call must not panic or hang
		_ = inFstab(string(raw), point)       // the call must not panic or hang
		root, point = "/"+root, "/"+point
		table := readTable(fmt.Appendf(nil, "36 35 0:5 %s %s rw shared:1 - fuse.x %s rw,user_id=0\n", escaped(root), escaped(point), escaped(source)))
		want := mounted{root: root, path: point, fsType: "fuse.x", source: source}
		if len(table) != 1 || table[0] != want {
			t.Fatalf("%+v instead of %+v", table, want)
		}
		if found := at(table, other); (len(found) > 0) != (other == point) {
			t.Errorf("at %q is %+v", other, found)
		}
		utab := fmt.Sprintf("ID=1 SRC=%s TARGET=%s ROOT=%s ATTRS=a OPTS=%s\n", escaped(source), escaped(point), escaped(root), umountHelper)
		if remembered([]byte(utab), other, want) != (other == point) {
			t.Errorf("%q, where %q is mounted, is remembered: %t", other, point, other != point)
		}
	})
}

// FuzzMountUnit checks that UnitName returns a different valid name for each directory.
func FuzzMountUnit(f *testing.F) {
	for i, name := range hostile {
		f.Add("/"+name, "/"+hostile[len(hostile)-1-i])
	}
	f.Add("/a/b", "/a-b")
	f.Add("/a/.b", `/a/\x2eb`)
	f.Fuzz(func(t *testing.T, a, b string) {
		const longest = 255 // the maximum length of a unit name in bytes, see systemd.unit(5)
		a, b = filepath.Clean("/"+a), filepath.Clean("/"+b)
		unit := UnitName(a)
		if len(unit) <= longest && !suggest.ValidUnit(unit) {
			t.Errorf("%q has the unit %q", a, unit)
		}
		if a != b && unit == UnitName(b) {
			t.Errorf("%q and %q have the unit %q", a, b, unit)
		}
	})
}

// FuzzMountOptions checks that the doctor accepts every option that "volctl mount" accepts.
func FuzzMountOptions(f *testing.F) {
	for _, o := range fstab.Options {
		f.Add(o.Name, "1")
	}
	for _, value := range []string{"0770", "00770", "80s", "1e9h", "+1", "", "08", "0x1", "single-node-writer", "block-device", "-1", "1h1h"} {
		for _, name := range []string{"mode", "timeout", "per_alloc", "uid", "gid", "access_mode", "attachment_mode", "alloc"} {
			f.Add(name, value)
		}
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		for _, text := range []string{name, name + "=" + value} {
			if _, err := ReadOptions([]string{text}); err != nil {
				continue
			}
			for _, option := range fstab.SplitOptions(text) {
				if err := fstab.CheckOption(option); err != nil {
					t.Errorf("mount takes %q, and doctor says: %v", option, err)
				}
			}
		}
	})
}
