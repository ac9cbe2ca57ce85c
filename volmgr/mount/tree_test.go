package mount

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/volume"
)

func TestInTree(t *testing.T) {
	dir := tempDir(t)
	tests := []struct {
		name string
		// make makes mounts below dir, and returns the directory to test.
		make func(t *testing.T, dir string) string
	}{
		{"plain directory", func(t *testing.T, dir string) string { return mkdir(t, dir, "ours") }},
		{"file system of its own", func(t *testing.T, dir string) string {
			mountFS(t, "tmpfs", "t", mkdir(t, dir, "ours"), 0, "")
			return dir + "/ours"
		}},
		{"bind of itself", func(t *testing.T, dir string) string {
			bindAt(t, mkdir(t, dir, "ours"), dir+"/ours")
			return dir + "/ours"
		}},
		{"bind of a part", func(t *testing.T, dir string) string {
			bindAt(t, mkdir(t, dir, "a/b"), mkdir(t, dir, "elsewhere"))
			return mkdir(t, dir, "elsewhere/ours")
		}},
		{"through a link", func(t *testing.T, dir string) string {
			mkdir(t, dir, "real/ours")
			check(t, os.Symlink("real", dir+"/link"))
			return dir + "/link/ours"
		}},
		{"overlay", func(t *testing.T, dir string) string {
			mountFS(t, "tmpfs", "t", mkdir(t, dir, "t"), 0, "") // the upper layer of an overlay cannot be in another overlay
			lower, upper, work := mkdir(t, dir, "t/l"), mkdir(t, dir, "t/u"), mkdir(t, dir, "t/w")
			mountFS(t, "overlay", "o", mkdir(t, dir, "o"), 0, "lowerdir="+lower+",upperdir="+upper+",workdir="+work)
			return mkdir(t, dir, "o/ours")
		}},
		{"btrfs subvolume", func(t *testing.T, dir string) string {
			dev := loop(t, dir, 128<<20, "mkfs.btrfs", "-q")
			mountFS(t, "btrfs", dev, mkdir(t, dir, "top"), 0, "")
			run(t, "btrfs", "subvolume", "create", dir+"/top/@")
			mountFS(t, "btrfs", dev, mkdir(t, dir, "at"), 0, "subvol=@")
			run(t, "btrfs", "subvolume", "create", dir+"/at/nested")
			return mkdir(t, dir, "at/nested/ours")
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := mkdir(t, dir, t.Name())
			ours := tt.make(t, dir)
			foreign := mkdir(t, dir, "foreign")
			mountFS(t, "tmpfs", "t", foreign, 0, "")
			sibling := mkdir(t, ours+"-not")
			for _, c := range []struct {
				src string
				in  bool
			}{
				{ours, true},
				{mkdir(t, ours, "deep/er"), true},
				{write(t, ours+"/file", ""), true},
				{sibling, false}, // the path of this directory only begins with the same text
				{foreign, false},
				{"/proc", false},
			} {
				at := write(t, dir+"/at-file", "")
				if st, err := os.Stat(c.src); err == nil && st.IsDir() {
					at = mkdir(t, dir, "at-dir")
				}
				bindAt(t, c.src, at)
				id := see(t, at).Identity
				now, old, older := hosts(t)
				for _, h := range []*Host{now, old, older} {
					if in, err := h.InTree(id, ours); err != nil || in != c.in {
						t.Errorf("%q in %q: %v, %v (%+v)", c.src, ours, in, err, id)
					}
				}
				check(t, unix.Unmount(at, 0))
			}
			// InTree must not count a file system that is mounted below the tested directory.
			mountFS(t, "tmpfs", "t", mkdir(t, ours, "planted"), 0, "")
			if in, err := newHost(t).InTree(see(t, ours+"/planted").Identity, ours); in || err != nil {
				t.Errorf("planted: %v, %v", in, err)
			}
			// The source of this mount was deleted, but InTree must still count the mount.
			bindAt(t, mkdir(t, ours, "gone"), mkdir(t, dir, "at-gone"))
			check(t, os.Remove(ours+"/gone"))
			if in, err := newHost(t).InTree(see(t, dir+"/at-gone").Identity, ours); !in || err != nil {
				t.Errorf("deleted: %v, %v", in, err)
			}
		})
	}
	if in, err := newHost(t).InTree(volume.MountIdentity{}, dir+"/none"); in || err != nil {
		t.Errorf("missing: %v, %v", in, err)
	}
	if _, err := newHost(t).InTree(volume.MountIdentity{}, write(t, dir+"/file", "")); err == nil {
		t.Error("a file is a tree")
	}
}

// TestInTreeChanges checks that InTree does not use a cached position after a mount covers the
// directory, or after another directory takes its path.
func TestInTreeChanges(t *testing.T) {
	dir := tempDir(t)
	ours, h := mkdir(t, dir, "ours"), newHost(t)
	seen := func(name string) volume.MountIdentity {
		bindAt(t, mkdir(t, ours, name), mkdir(t, dir, "at-"+name))
		return see(t, dir+"/at-"+name).Identity
	}
	is := func(what string, id volume.MountIdentity, want bool) {
		t.Helper()
		for range 2 {
			if in, err := h.InTree(id, ours); err != nil || in != want {
				t.Errorf("%s: %v, %v", what, in, err)
			}
		}
	}
	first := seen("first")
	is("as it is", first, true)
	mountFS(t, "tmpfs", "t", ours, 0, "")
	covered := seen("covered")
	is("below what covers it", covered, true)
	is("what is covered", first, false)
	check(t, unix.Unmount(dir+"/at-covered", 0))
	check(t, unix.Unmount(ours, 0))
	is("uncovered", first, true)
	check(t, os.Rename(ours, dir+"/moved"))
	mkdir(t, dir, "ours")
	is("in the new one", seen("new"), true)
}

func TestUnder(t *testing.T) {
	dir := tempDir(t)
	root := mkdir(t, dir, "root")
	h := newHost(t)
	for _, path := range []string{root, dir + "/none"} {
		if entries, err := h.Under(path); err != nil || len(entries) != 0 {
			t.Errorf("nothing under %q: %v, %v", path, entries, err)
		}
	}
	mountFS(t, "tmpfs", "one", root, 0, "")
	mountFS(t, "tmpfs", "two", mkdir(t, root, "a b"), unix.MS_RDONLY, "")
	mountFS(t, "tmpfs", "three", root+"/a b", 0, "")
	mountFS(t, "tmpfs", "not", mkdir(t, dir, "root-not"), 0, "")
	check(t, os.Symlink("root", dir+"/link"))
	for _, spelt := range []string{root, dir + "/link", root + "/"} {
		entries, err := h.Under(spelt)
		check(t, err)
		base := dir + "/" + map[bool]string{true: "link", false: "root"}[spelt == dir+"/link"]
		want := []Entry{
			{Path: base, Source: "one"},
			{Path: base + "/a b", Source: "two", ReadOnly: true, Covered: true},
			{Path: base + "/a b", Source: "three"},
		}
		if len(entries) != len(want) {
			t.Fatalf("under %q: %+v", spelt, entries)
		}
		for i, e := range entries {
			if e.Identity.Boot != h.Boot() || e.Identity.Namespace != h.Namespace() || e.Identity.FSType != "tmpfs" || e.Identity.Root != "/" || e.Identity.ID != 0 {
				t.Errorf("identity: %+v", e.Identity)
			}
			if !e.Covered && e.Path != dir+"/link" { // the link itself is not in the mount table
				id := see(t, e.Path).Identity
				id.ID = 0
				if id != e.Identity {
					t.Errorf("%q: the table says %+v, the path %+v", e.Path, e.Identity, id)
				}
			}
			if e.ID == 0 {
				t.Errorf("under %q: %q has no mount id", spelt, e.Path)
			}
			e.Identity, e.ID = volume.MountIdentity{}, 0
			if e != want[i] {
				t.Errorf("under %q: %+v, want %+v", spelt, e, want[i])
			}
		}
	}
}

// TestTableTakesLongLines checks that the agent reads a mount table with a line that is too long
// for the parser. An overlay with very many layers has such a line.
func TestTableTakesLongLines(t *testing.T) {
	line := func(options string) string {
		return "36 35 98:0 /r /m rw,relatime shared:1 - overlay src " + options + "\n"
	}
	long := make([]byte, 200_000)
	for i := range long {
		long[i] = 'x'
	}
	table, err := proc.ParseMounts(strings.NewReader(line("ro,lowerdir="+string(long))+line("rw")), nil, nil)
	check(t, err)
	if len(table) != 2 || table[0].FSType != "overlay" || !hasOption(table[0].VFSOptions, "ro") || table[1].VFSOptions != "rw" {
		t.Errorf("got %+v", table)
	}
}
