package proc_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/proc"
)

var escape = strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`)

// FuzzMounts checks that a filter finds a mount by its mount point, regardless of the characters in
// the mount point. The filter must find no other mount.
func FuzzMounts(f *testing.F) {
	for _, name := range []string{"a", "a b", "a\tb\nc", `a\040b`, "- - ext4 /dev/sda1 rw", "\xff", "", "x//deleted", "a\u00a0b"} {
		f.Add("/"+name, "/a")
	}
	f.Fuzz(func(t *testing.T, point, other string) {
		if point == "" || strings.Contains(point, "\x00") || len(point) > 10_000 {
			return
		}
		table := fmt.Sprintf("36 35 0:5 / %s rw - ext4 /dev/sda1 rw\n", escape.Replace(point))
		for _, want := range []string{point, other} {
			found, err := proc.ParseMounts(strings.NewReader(table), nil, func(m *proc.Mount) (skip, stop bool) { return m.Mountpoint != want, false })
			if err != nil || (len(found) == 1) != (want == point) {
				t.Errorf("%q, with %q mounted: %d, %v", want, point, len(found), err)
			}
		}
	})
}

// TestReadMounts checks that ReadMounts does not parse lines that keep rejects. Such lines may be
// malformed.
func TestReadMounts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mountinfo")
	text := "no mount\n36 35 0:5 / /a rw - ext4 /dev/sda1 rw\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	mounts, err := proc.ReadMounts(file, func(line []byte) bool { return line[0] == '3' }, nil)
	if err != nil || len(mounts) != 1 || mounts[0].Mountpoint != "/a" {
		t.Errorf("%v, %v", mounts, err)
	}
	if _, err := proc.ReadMounts(file, nil, nil); err == nil {
		t.Error("a malformed line is no error")
	}
	if _, err := proc.ReadMounts(file+"x", nil, nil); err == nil {
		t.Error("no file is no error")
	}
}
