package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/fstab"
	"github.com/volagent/volagent/volmgr/suggest"
)

// hostile are names that are hard to parse.
var hostile = []string{
	"data", "a b", "a\tb", "a\nb", `a\040b`, `a\`, "#", "a\u00a0b", "a\rb\vc\fd", "\xff\xfe", "größe\u2003x", "- - ext4", `"a,b"`, "100%", "%h", "-", ".", "[Mount]", "a/b", "", "a=b", "\x1b[2J",
}

// escaped escapes a name as the kernel does in a mount table, and libmount in its own.
func escaped(name string) string {
	return strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(name)
}

// FuzzMountTable checks that each mount in the tables of the kernel and of libmount is parsed
// correctly with any names, and that no other mount is found.
func FuzzMountTable(f *testing.F) {
	for _, name := range hostile {
		f.Add("", name, name, "/a", []byte(name))
		f.Add(name, "a", name, "/"+name, []byte("1 2 3 / /a rw - "+name))
	}
	f.Fuzz(func(t *testing.T, root, point, source, other string, raw []byte) {
		_ = readTable(raw)                       // must not panic or hang
		_ = remembered(raw, point, mounted{})    // must not panic or hang
		_ = inFstab(string(raw), point)          // must not panic or hang
		_ = serviceFromCgroup(string(raw) + "x") // must not panic or hang
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

// FuzzOwner checks that each owner has only one spelling, and that it has all fields of its kind.
func FuzzOwner(f *testing.F) {
	for _, text := range []string{"none", "pid:1", "pid:", "pid:-1", "pid:+1", "pid:0x1", "pid:1 ", "unit:", "unit:a", "unit:a.scope", "unit:a:b", "mount:1", ":", "", "unit:\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		o, err := parseOwner(text)
		var again string
		switch {
		case err != nil:
			return
		case o == api.Owner{Kind: api.OwnerNone}:
			again = "none"
		case o == api.Owner{Kind: api.OwnerPID, PID: o.PID} && o.PID > 0:
			again = fmt.Sprintf("pid:%d", o.PID)
		case o == api.Owner{Kind: api.OwnerUnit, Unit: o.Unit} && strings.Contains(o.Unit, "."):
			again = "unit:" + o.Unit
		}
		if same, err := parseOwner(again); err != nil || same != o {
			t.Errorf("%q is %+v, and then %+v, %v", text, o, same, err)
		}
	})
}

// FuzzMountUnit checks that each directory has its own unit, with a name that systemd allows.
func FuzzMountUnit(f *testing.F) {
	for i, name := range hostile {
		f.Add("/"+name, "/"+hostile[len(hostile)-1-i])
	}
	f.Add("/a/b", "/a-b")
	f.Add("/a/.b", `/a/\x2eb`)
	f.Fuzz(func(t *testing.T, a, b string) {
		a, b = filepath.Clean("/"+a), filepath.Clean("/"+b)
		unit := mountUnit(a)
		if len(unit) <= unitPathMax && !suggest.ValidUnit(unit) {
			t.Errorf("%q has the unit %q", a, unit)
		}
		if a != b && unit == mountUnit(b) {
			t.Errorf("%q and %q have the unit %q", a, b, unit)
		}
	})
}

// FuzzGenerate checks that the generated units and the line for fstab mount this volume at this
// directory with these options, and contain nothing else.
func FuzzGenerate(f *testing.F) {
	for _, name := range hostile {
		f.Add(name, "/srv/"+name, "ro,comment="+name)
		f.Add("data", "/srv/data", `x-a="`+name+` , `+name+`",nofail`)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, volume, at, options string) {
		o := &systemdOptions{volume: volume, dir: at, options: []string{options}, consumer: "web.service"}
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

// FuzzMountOptions checks that doctor accepts every option that mount accepts.
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
			if _, err := readMountOptions([]string{text}); err != nil {
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

// FuzzArguments checks that normalise only reorders arguments and adds dashes. It loses no argument
// and leaves the arguments after "--" unchanged.
func FuzzArguments(f *testing.F) {
	for _, text := range []string{
		"volume status data", "-o json volume list", "volume detach data web -force", "volume detach -- -force -x", "-", "--", "volume -abc --x=y", "mount -o ro,x a /b", "-socket /x version", "\x00", "volume create -f -",
	} {
		f.Add(strings.ReplaceAll(text, " ", "\x00"))
	}
	_, root := testRoot()
	f.Fuzz(func(t *testing.T, text string) {
		args := strings.Split(text, "\x00")
		got := normalise(root, slices.Clone(args))
		plain := func(all []string) []string {
			all = slices.Clone(all)
			for i, arg := range all {
				all[i] = strings.TrimLeft(arg, "-")
			}
			slices.Sort(all)
			return all
		}
		if a, b := plain(args), plain(got); !slices.Equal(a, b) {
			t.Errorf("%q became %q", args, got)
		}
		end := slices.Index(args, "--")
		value := end > 0 && isFlag(args[end-1]) // "--" may be the value of a flag
		if end >= 0 && !value && !slices.Equal(args[end:], got[len(got)-len(args)+end:]) {
			t.Errorf("%q became %q", args, got)
		}
	})
}
