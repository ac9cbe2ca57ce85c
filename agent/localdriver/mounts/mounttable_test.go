package mounts

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/localdriver/sandbox"
)

// hostileNames are directory names that a user may choose to confuse a parser of mount tables.
var hostileNames = []string{
	"/srv/a", "/a b", "/a\tb\nc", `/a\040b`, "/a\rb", "/a\vb\fc", "/a\u00a0b\u2003c\u0085d", "/- - ext4 /dev/sda1 rw", "/x\n9 1 7:1 / /fake rw - ext4 /dev/loop1 rw",
	"/\xff\xfe", "/#", "", "/x//deleted", "/loop7", "/\x1b[2J",
}

// escapedName escapes a name in the same way as the kernel in a mount table.
func escapedName(name string) string {
	return strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(name)
}

// FuzzReadMounts reads mount tables that contain names chosen by users. The parser must treat each
// line as exactly one mount, and return the names unchanged.
func FuzzReadMounts(f *testing.F) {
	for _, name := range hostileNames {
		f.Add(name, name, name)
		f.Add("/", "/m", name)
	}
	f.Fuzz(func(t *testing.T, root, point, source string) {
		root, point = "/"+root, "/"+point
		line := fmt.Sprintf("36 35 0:52 %s %s rw,nosuid shared:1 - fuse.x %s ro,user_id=0\n", escapedName(root), escapedName(point), escapedName(source))
		file := filepath.Join(t.TempDir(), "mountinfo")
		sandbox.Must(t, os.WriteFile(file, []byte("1 0 7:1 / / ro - ext4 /dev/loop1 rw\n"+line+"37 1 7:2 / /z ro - ext4 /dev/loop2 rw\n"), 0o600))
		got, err := ReadMounts(file, ":")
		want := []MountEntry{
			{"1", "7:1", "/", "/", "ext4", "/dev/loop1", true, "rw"},
			{"36", "0:52", root, point, "fuse.x", source, false, "ro,user_id=0"},
			{"37", "7:2", "/", "/z", "ext4", "/dev/loop2", true, "rw"},
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%+v, %v\nwant %+v", got, err, want)
		}
	})
}

// TestReadMounts checks that ReadMounts returns all names and options of a mount from its line.
func TestReadMounts(t *testing.T) {
	for line, want := range map[string]MountEntry{
		`36 35 98:0 /a\040b /mnt\134x rw,noatime shared:1 master:2 - ext4 /dev/sda1 rw,errors=continue`: {"36", "98:0", "/a b", `/mnt\x`, "ext4", "/dev/sda1", false, "rw,errors=continue"},
		`36 35 0:5 /loop3 /t nodev,ro - devtmpfs none rw`:                                               {"36", "0:5", "/loop3", "/t", "devtmpfs", "none", true, "rw"},
		`36 35 0:5 /x /t rw - fuse.a a\011b rw`:                                                         {"36", "0:5", "/x", "/t", "fuse.a", "a\tb", false, "rw"},
	} {
		file := filepath.Join(t.TempDir(), "mountinfo")
		sandbox.Must(t, os.WriteFile(file, []byte(line+"\n"), 0o600))
		if got, err := ReadMounts(file, ":"); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%q: got %+v, want %+v, %v", line, got, want, err)
		}
	}
}
