package mounts

import (
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseMountFlags(t *testing.T) {
	for _, c := range []struct {
		flags []string
		want  MountFlags
	}{
		{nil, MountFlags{}},
		{[]string{"ro, noexec", "", "rw"}, MountFlags{Set: unix.MOUNT_ATTR_NOEXEC, clear: unix.MOUNT_ATTR_RDONLY}},
		{[]string{"commit=30,discard"}, MountFlags{Fs: []string{"commit=30", "discard"}}},
		{[]string{`context="system_u:object_r:etc_t:s0:c1,c2"`, "noexec"}, MountFlags{Set: unix.MOUNT_ATTR_NOEXEC, Fs: []string{"context=system_u:object_r:etc_t:s0:c1,c2"}}},
		{[]string{`context="unclosed,ro`}, MountFlags{Fs: []string{"context=unclosed,ro"}}},
	} {
		if got := ParseMountFlags(c.flags); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %+v, not %+v", c.flags, got, c.want)
		}
	}
}

// FuzzMountFlags checks that each flag belongs either to the mount or to the filesystem. Each
// attribute of a mount is cleared before it is set, so the result never depends on the previous
// flags of the mount. If two flags contradict each other, the last one must count.
func FuzzMountFlags(f *testing.F) {
	for name := range attrs {
		f.Add(name, name)
		f.Add("rw,suid,dev,exec", name)
	}
	for _, text := range []string{`context="a:b:c1,c2"`, `"`, `a,"b,c`, ",,", " ro , rw ", "discard,commit=30", "\x00", "\xff"} {
		f.Add(text, "ro")
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		m := ParseMountFlags([]string{first, second})
		for _, flag := range m.Fs {
			if _, known := attrs[flag]; known || flag == "" || strings.ContainsRune(flag, '"') {
				t.Errorf("%q, %q: %q is given to the filesystem", first, second, flag)
			}
		}
		if a, known := attrs[second]; known && strings.Count(first, `"`)%2 == 0 && (m.Set&a.set != a.set || m.Set&a.clear&^a.set != 0 || m.clear&a.clear != a.clear) {
			t.Errorf("%q, %q: %+v, want %+v", first, second, m, a)
		}
		if again := ParseMountFlags([]string{first, second, first, second}); again.Set&^m.Set != 0 && !strings.Contains(first+second, `"`) {
			t.Errorf("%q, %q: %+v, and given twice %+v", first, second, m, again)
		}
	})
}
