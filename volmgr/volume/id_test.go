package volume_test

import (
	"errors"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/volume"
)

func TestComponents(t *testing.T) {
	for _, tt := range []struct{ id, want string }{
		{"data", "data"},
		{"Data_1.2-x", "Data_1.2-x"},
		{".hidden", "~2Ehidden"},
		{"...", "~2E.."},
		{"a.b", "a.b"},
		{"a b", "a~20b"},
		{"a~b", "a~7Eb"},
		{"a~20b", "a~7E20b"},
		{"postgres@16.service", "postgres~4016.service"},
		{"größe", "gr~C3~B6~C3~9Fe"},
		{"-rf", "-rf"},
		{"a:b,c", "a~3Ab~2Cc"},
	} {
		for name, component := range components {
			if got := component.of(tt.id); got != tt.want {
				t.Errorf("%s component of %q is %q, want %q", name, tt.id, got, tt.want)
			}
		}
	}
}

var components = map[string]struct {
	of    func(string) string
	limit int
}{
	"plugin":         {volume.PluginComponent, 24},
	"alloc":          {volume.AllocComponent, 36},
	"volume":         {volume.VolumeComponent, 34},
	"private volume": {volume.PrivateComponent, 31},
}

func TestLongComponents(t *testing.T) {
	for name, c := range components {
		fits := strings.Repeat("x", c.limit)
		if got := c.of(fits); got != fits {
			t.Errorf("%s: an id that just fits became %q", name, got)
		}
		long := c.of(fits + "x")
		if want := regexp.MustCompile(`^x+~[0-9a-f]{12}$`); len(long) != c.limit || !want.MatchString(long) {
			t.Errorf("%s: a long id became %q, want %d bytes that match %s", name, long, c.limit, want)
		}
		if other := c.of(fits + "y"); other == long {
			t.Errorf("%s: two long ids share the component %q", name, long)
		}
		// Escaping can make a component too long, even if the id is short enough.
		if got := c.of(strings.Repeat("é", c.limit/2)); len(got) != c.limit {
			t.Errorf("%s: an id of many escapes became %q with %d bytes, want %d", name, got, len(got), c.limit)
		}
	}
}

// TestDefaultPathsFit checks that the longest path below the default data dir has a length that CSI
// requires every plugin to accept.
func TestDefaultPathsFit(t *testing.T) {
	id := strings.Repeat("x", 200)
	path := filepath.Join("/var/lib/volagent/csi", volume.PluginComponent(id), "per-alloc", volume.AllocComponent(id), volume.VolumeComponent(id))
	private := filepath.Join(filepath.Dir(path), volume.PrivateDir, volume.PrivateComponent(id))
	for _, path := range []string{path, private} {
		if len(path) > 128 {
			t.Errorf("%s has %d bytes, more than 128", path, len(path))
		}
	}
	if socket := filepath.Join("/run/volagent/plugins", volume.PluginComponent(id), "csi.sock"); len(socket) > 107 {
		t.Errorf("%s has %d bytes, more than 107", socket, len(socket))
	}
}

// FuzzComponent checks that the component of any id is one safe path element, and that different
// ids have different components.
func FuzzComponent(f *testing.F) {
	long := strings.Repeat("a", 40)
	for _, pair := range [][2]string{
		{"a", "b"}, {"a b", "a~20b"}, {".a", "~2Ea"}, {".", ".."}, {"", "a"}, {"/", "~2F"}, {"a\x00", "a"},
		{long, long + "a"}, {long + " ", long + "~20"}, {"ä", "a\u0308"}, {"\xff", "\xfe"},
	} {
		f.Add(pair[0], pair[1])
	}
	safe := regexp.MustCompile(`^[A-Za-z0-9_~-][A-Za-z0-9._~-]*$`)
	f.Fuzz(func(t *testing.T, a, b string) {
		for name, c := range components {
			got := c.of(a)
			if len(got) > c.limit || a != "" && !safe.MatchString(got) {
				t.Errorf("%s component of %q is %q", name, a, got)
			}
			if a != b && got == c.of(b) {
				t.Errorf("%q and %q share the %s component %q", a, b, name, got)
			}
		}
	})
}

func TestCheckID(t *testing.T) {
	for _, tt := range []struct{ id, bad string }{
		{"data", ""},
		{"a", ""},
		{strings.Repeat("x", 128), ""},
		{"ein Volume mit Leerzeichen", ""},
		{"größe", ""},
		{"...", ""},
		{"-x", ""},
		{`back\slash`, ""},
		{"", "volume id is missing"},
		{strings.Repeat("x", 129), "has 129 bytes"},
		{strings.Repeat("ü", 65), "has 130 bytes"},
		{".", "not allowed"},
		{"..", "not allowed"},
		{"a/b", "contains a slash"},
		{"/", "contains a slash"},
		{"a\x00b", "unprintable character U+0000"},
		{"a\nb", "unprintable character U+000A"},
		{"a\u200bb", "unprintable character U+200B"},
		{"a\u202eb", "unprintable character U+202E"},
		{"\xff", "not UTF-8"},
	} {
		err := volume.CheckID("volume id", tt.id)
		checkInvalid(t, tt.id, err, tt.bad)
	}
}

func TestCheckPluginID(t *testing.T) {
	for _, tt := range []struct{ id, bad string }{
		{"ebs", ""},
		{"ebs.csi.aws.com-0_1", ""},
		{strings.Repeat("x", 48), ""},
		{strings.Repeat("x", 49), "1 to 48"},
		{"", "1 to 48"},
		{".", "1 to 48"},
		{"..", "1 to 48"},
		{"a b", "1 to 48"},
		{"a/b", "1 to 48"},
		{"a\n", "1 to 48"},
		{"größe", "1 to 48"},
	} {
		checkInvalid(t, tt.id, volume.CheckPluginID(tt.id), tt.bad)
	}
}

// checkInvalid fails the test unless err is an ErrInvalid that contains words. If words is empty,
// err must be nil.
func checkInvalid(t *testing.T, what string, err error, words string) {
	t.Helper()
	switch {
	case words == "" && err != nil:
		t.Errorf("%q is refused: %v", what, err)
	case words != "" && (!errors.Is(err, volume.ErrInvalid) || !strings.Contains(err.Error(), words)):
		t.Errorf("%q: got %v, want an ErrInvalid with %q", what, err, words)
	}
}

// TestCheckNewID checks that CheckNewID refuses an id that looks like an option of a command.
func TestCheckNewID(t *testing.T) {
	for id, bad := range map[string]string{
		"data": "", "a-b": "", "-x": `begins with "-"`, "-": `begins with "-"`, "--help": `begins with "-"`, "a/b": "contains a slash",
	} {
		checkInvalid(t, id, volume.CheckNewID("volume id", id), bad)
	}
}
