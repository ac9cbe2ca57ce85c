package localdriver

import (
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseMountFlags(t *testing.T) {
	for _, c := range []struct {
		flags []string
		want  mountFlags
	}{
		{nil, mountFlags{}},
		{[]string{"ro, noexec", "", "rw"}, mountFlags{set: unix.MOUNT_ATTR_NOEXEC, clear: unix.MOUNT_ATTR_RDONLY}},
		{[]string{"commit=30,discard"}, mountFlags{fs: []string{"commit=30", "discard"}}},
		{[]string{`context="system_u:object_r:etc_t:s0:c1,c2"`, "noexec"}, mountFlags{set: unix.MOUNT_ATTR_NOEXEC, fs: []string{"context=system_u:object_r:etc_t:s0:c1,c2"}}},
		{[]string{`context="unclosed,ro`}, mountFlags{fs: []string{"context=unclosed,ro"}}},
	} {
		if got := parseMountFlags(c.flags); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %+v, not %+v", c.flags, got, c.want)
		}
	}
}
