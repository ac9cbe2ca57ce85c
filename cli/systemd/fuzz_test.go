package systemd

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/fstab"
)

// hostileNames lists names that are hard to write into a unit file.
var hostileNames = []string{
	"data", "a b", "a\tb", "a\nb", `a\040b`, `a\`, "#", "a\u00a0b", "\xff\xfe", "größe\u2003x", "- - ext4", `"a,b"`, "100%", "%h", "-", ".", "[Mount]", "a/b", "", "a=b", "\x1b[2J",
}

// FuzzGenerate checks the generated units and the line for fstab. They must mount the given volume
// at the given directory with the given options, and must not contain anything else.
func FuzzGenerate(f *testing.F) {
	for _, name := range hostileNames {
		f.Add(name, "/srv/"+name, "ro,comment="+name)
		f.Add("data", "/srv/data", `x-a="`+name+` , `+name+`",nofail`)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, volume, at, options string) {
		o := &generateOptions{volume: volume, dir: at, options: []string{options}, consumer: "web.service"}
		if o.check() != nil {
			return
		}
		g := o.units()
		for _, file := range g.Files {
			path := filepath.Join(dir, strings.TrimPrefix(file.Path, unitDir))
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(file.Text), 0o600)); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = os.Remove(path) }()
		}
		table := filepath.Join(dir, "fstab")
		if err := os.WriteFile(table, []byte(g.Fstab+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		entries, err := fstab.Read(fstab.Files{Fstab: table, Units: []string{dir}})
		if err != nil || len(entries) != 2 {
			t.Fatalf("%+v, %v of %+v", entries, err, g)
		}
		want := []string{"_netdev", "nofail"}
		for _, option := range fstab.SplitOptions(options) {
			if option != "_netdev" && option != "nofail" {
				want = append(want, option)
			}
		}
		for _, e := range entries {
			is := e.Options[:min(len(want), len(e.Options))]
			if e.Volume != volume || e.Dir != o.dir || !slices.Equal(is, want) || e.Unit != "" && !slices.Equal(e.After, []string{"volagent.service"}) {
				t.Errorf("volume %q at %q with %q is %+v", volume, o.dir, want, e)
			}
			for _, option := range e.Options[len(is):] {
				if e.Unit != "" || !strings.HasPrefix(option, "x-systemd.") {
					t.Errorf("there is one more option, %q", option)
				}
			}
		}
	})
}
