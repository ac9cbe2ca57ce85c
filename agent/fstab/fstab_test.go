package fstab

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRead checks that Read finds the csi entries of an fstab and of unit files.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	etc, lib := filepath.Join(dir, "etc"), filepath.Join(dir, "lib")
	table := write(t, filepath.Join(dir, "fstab"), `# data /x csi defaults
/dev/sda1	/	ext4	defaults	0 1
data /srv/my\040data  csi  _netdev,nofail,comment="a,b",,ro  0 0
	web\133 /w csi
short /x
data /y csi.x defaults`)
	write(t, filepath.Join(etc, "a.mount"), "[Unit]\n# After=no.service\nAfter=x.service \\\n  ; a comment\n  volagent.service\n[Mount]\nWhat=data\nWhere=/a b\nType=csi\nOptions=_netdev\n")
	write(t, filepath.Join(lib, "a.mount"), "[Mount]\nWhat=other\nWhere=/a\nType=csi\n")
	write(t, filepath.Join(lib, "b.mount"), "[Unit]\nAfter=volagent.service\n[Mount]\nWhat=data\nWhere=/b\nType=csi\n")
	write(t, filepath.Join(etc, "b.mount.d", "10-x.conf"), "[Unit]\nAfter=\n[Mount]\nOptions=ro,alloc=z\n")
	write(t, filepath.Join(lib, "b.mount.d", "10-x.conf"), "[Mount]\nOptions=hidden\n")
	write(t, filepath.Join(lib, "c.mount"), "[Mount]\nWhat=/dev/x\nWhere=/c\nType=ext4\n")
	write(t, filepath.Join(lib, "d.mount"), "[Mount]\nWhat=x\nWhere=/d\nType=csi\n")
	if err := os.Symlink("/dev/null", filepath.Join(etc, "d.mount")); err != nil {
		t.Fatal(err)
	}
	got, err := Read(Files{Fstab: table, Units: []string{etc, lib, filepath.Join(dir, "none")}})
	want := []Entry{
		{File: table, Line: 3, Volume: "data", Dir: "/srv/my data", Options: []string{"_netdev", "nofail", "comment=a,b", "ro"}},
		{File: table, Line: 4, Volume: "web[", Dir: "/w"},
		{File: filepath.Join(etc, "a.mount"), Unit: "a.mount", Volume: "data", Dir: "/a b", Options: []string{"_netdev"}, After: []string{"x.service", "volagent.service"}},
		{File: filepath.Join(lib, "b.mount"), Unit: "b.mount", Volume: "data", Dir: "/b", Options: []string{"ro", "alloc=z"}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\n%+v\nwant\n%+v", err, got, want)
	}
	if got, err := Read(Files{Fstab: filepath.Join(dir, "none")}); len(got) != 0 || err != nil {
		t.Errorf("nothing there: %+v, %v", got, err)
	}
	huge := write(t, filepath.Join(dir, "huge"), strings.Repeat("x", maxFile+1))
	if _, err := Read(Files{Fstab: huge}); err == nil || !strings.Contains(err.Error(), huge) {
		t.Errorf("a table that is too long: %v", err)
	}
}

// TestSystem checks that System returns the default paths, or the paths in the environment
// variables of mount(8) and systemd.
func TestSystem(t *testing.T) {
	env := map[string]string{}
	getenv := func(name string) string { return env[name] }
	if got := System(getenv); got.Fstab != "/etc/fstab" || !slices.Equal(got.Units, unitDirs) {
		t.Errorf("usually: %+v", got)
	}
	env["LIBMOUNT_FSTAB"], env["SYSTEMD_UNIT_PATH"] = "/t", "/a:/b"
	if got := System(getenv); got.Fstab != "/t" || !slices.Equal(got.Units, []string{"/a", "/b"}) {
		t.Errorf("others: %+v", got)
	}
	env["SYSTEMD_UNIT_PATH"] = "/a:"
	if got := System(getenv); !slices.Equal(got.Units, append([]string{"/a"}, unitDirs...)) {
		t.Errorf("more: %+v", got)
	}
}

// TestOptions checks that CheckOption accepts valid options and returns errors for invalid options.
func TestOptions(t *testing.T) {
	for option, want := range map[string]string{
		"ro": "", "_netdev": "", "nofail": "", "x-systemd.automount": "", "X-mount.mkdir": "", "comment=x": "", "alloc=web": "", "per_alloc=0": "", "mode=0770": "",
		"timeout=80s": "", "timeout=80": "", "timeout=1d": "", "access_mode=single-node-writer": "", "attachment_mode=block-device": "", "mount_flag=discard": "", "user": "", "nosymfollow": "",
		"readonly": `no option "readonly"`, "ro=1": "has no value", "alloc": "needs a value", "per_alloc=x": "whole number", "per_alloc=-1": "whole number",
		"mode=0899": "not a mode", "mode=77777": "not a mode", "timeout=soon": "not a duration", "timeout=0s": "not a duration", "access_mode=rw": "is not one of", "": `no option ""`,
	} {
		err := CheckOption(option)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", option, err, want)
		}
	}
}

// TestCheck checks the faults that Check finds in one entry, for different states of its directory.
func TestCheck(t *testing.T) {
	const good = "_netdev,nofail"
	dir := Spot{Kind: "directory"}
	for name, c := range map[string]struct {
		volume, dir, options string
		spot                 Spot
		want                 []string // pairs of kind and severity
	}{
		"good":                    {"data", "/d", good, dir, nil},
		"mounted":                 {"data", "/d", good, Spot{Mounted: true}, nil},
		"no _netdev":              {"data", "/d", "nofail", dir, []string{"fstab-netdev problem"}},
		"no _netdev, noauto":      {"data", "/d", "noauto", dir, []string{"fstab-netdev warning"}},
		"no _netdev, automount":   {"data", "/d", "noauto,x-systemd.automount", dir, []string{"fstab-netdev problem"}},
		"no nofail":               {"data", "/d", "_netdev", dir, []string{"fstab-nofail warning"}},
		"noauto":                  {"data", "/d", "_netdev,noauto", dir, nil},
		"nothing at all":          {"data", "/d", "", dir, []string{"fstab-netdev problem", "fstab-nofail warning"}},
		"option":                  {"data", "/d", good + ",x,y=", dir, []string{"fstab-option problem", "fstab-option problem"}},
		"device node as a volume": {"/dev/sdb", "/d", good, dir, []string{"fstab-volume problem"}},
		"per alloc":               {"data", "/d", good + ",per_alloc=1", dir, nil},
		"relative":                {"data", "d", good, dir, []string{"fstab-dir problem"}},
		"root":                    {"data", "/.", good, dir, []string{"fstab-dir problem"}},
		"none":                    {"data", "none", good, dir, []string{"fstab-dir problem"}},
		"missing":                 {"data", "/d", good, Spot{}, []string{"fstab-dir problem"}},
		"a file":                  {"data", "/d", good, Spot{Kind: "file"}, []string{"fstab-dir problem"}},
		"a file for a device":     {"data", "/d", good + ",attachment_mode=block-device", Spot{Kind: "file"}, nil},
		"not empty":               {"data", "/d", good, Spot{Kind: "directory", Holds: `"x"`}, []string{"fstab-dir-holds warning"}},
		"not empty, allowed":      {"data", "/d", good + ",nonempty", Spot{Kind: "directory", Holds: `"x"`}, nil},
		"hung":                    {"data", "/d", good, Spot{Fault: "no answer"}, []string{"fstab-dir warning"}},
	} {
		e := Entry{File: "/etc/fstab", Line: 7, Volume: c.volume, Dir: c.dir, Options: SplitOptions(c.options)}
		var got []string
		for _, f := range Check([]Entry{e}, func(string) Spot { return c.spot }) {
			got = append(got, f.Kind+" "+f.Severity)
			if !slices.Contains(Kinds, f.Kind) || f.What == "" || f.Then == "" || f.Do == "" || f.Subject == "" {
				t.Errorf("%s: it does not say all: %+v", name, f)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: found %q, want %q", name, got, c.want)
		}
	}
}

// TestCheckUnits checks the faults that Check finds in units, and in two entries with the same
// directory.
func TestCheckUnits(t *testing.T) {
	unit := Entry{File: "/etc/systemd/system/d.mount", Unit: "d.mount", Volume: "data", Dir: "/d", Options: []string{"_netdev"}, After: []string{"volagent.service"}}
	late, local := unit, unit
	late.After, local.Options = nil, nil
	line := Entry{File: "/etc/fstab", Line: 2, Volume: "data", Dir: "/d", Options: []string{"_netdev", "nofail"}}
	for name, c := range map[string]struct {
		entries []Entry
		want    []string
	}{
		"good":  {[]Entry{unit}, nil},
		"late":  {[]Entry{late}, []string{"unit-order warning"}},
		"local": {[]Entry{local}, []string{"fstab-netdev warning"}},
		"twice": {[]Entry{line, unit}, []string{"fstab-duplicate problem"}},
	} {
		var got []string
		for _, f := range Check(c.entries, func(string) Spot { return Spot{Kind: "directory"} }) {
			got = append(got, f.Kind+" "+f.Severity)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: found %q, want %q", name, got, c.want)
		}
	}
}

// TestLookAt checks that LookAt recognizes mounts, directories and files. LookAt must not examine
// the contents of a mount.
func TestLookAt(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "full", "x"), "")
	for path, want := range map[string]Spot{
		"/proc": {Mounted: true}, dir: {Kind: "directory", Holds: `"full"`}, filepath.Join(dir, "full", "x"): {Kind: "file"}, filepath.Join(dir, "none"): {},
		"/dev/null": {Kind: "other"},
	} {
		if got := LookAt(path); got != want {
			t.Errorf("%s: %+v, want %+v", path, got, want)
		}
	}
	if got := Some([]string{"a", "b", "c", "d"}); got != `"a", "b", "c" and more` {
		t.Errorf("some names: %s", got)
	}
}
