package mount

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRemoveLeftover(t *testing.T) {
	dir := tempDir(t)
	tests := []struct {
		name string
		make func(t *testing.T, path string)
		err  string // a part of the expected error; if empty, RemoveLeftover must succeed
	}{
		{"missing", func(*testing.T, string) {}, ""},
		{"empty directory", func(t *testing.T, p string) { mkdir(t, p) }, ""},
		{"directory of mode 000", func(t *testing.T, p string) { check(t, os.Mkdir(p, 0)) }, ""},
		{"empty file", func(t *testing.T, p string) { write(t, p, "") }, ""},
		{"file of mode 000", func(t *testing.T, p string) { check(t, os.WriteFile(p, nil, 0)) }, ""},
		{"block device", func(t *testing.T, p string) { check(t, unix.Mknod(p, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0)))) }, ""},
		{"file with data", func(t *testing.T, p string) { write(t, p, "data") }, "it is a file of 4 bytes"},
		{"full directory", func(t *testing.T, p string) { write(t, mkdir(t, p)+"/a\nb", "") }, `it contains "a\nb"`},
		{"full directory of mode 000", func(t *testing.T, p string) { write(t, mkdir(t, p)+"/x", ""); check(t, os.Chmod(p, 0)) }, `it contains "x"`},
		{"very full directory", func(t *testing.T, p string) {
			for _, n := range strings.Split("abcdefgh", "") {
				mkdir(t, p, n)
			}
		}, "and more"},
		{"link to an empty directory", func(t *testing.T, p string) { check(t, os.Symlink(mkdir(t, p+"-to"), p)) }, "symbolic link"},
		{"dangling link", func(t *testing.T, p string) { check(t, os.Symlink("none", p)) }, "symbolic link"},
		{"fifo", func(t *testing.T, p string) { check(t, unix.Mkfifo(p, 0o600)) }, "neither directory"},
		{"empty mount", func(t *testing.T, p string) { mountFS(t, "tmpfs", "t", mkdir(t, p), 0, "") }, "mount point"},
		{"mount on a file", func(t *testing.T, p string) { bindAt(t, write(t, p+"-src", ""), write(t, p, "")) }, "mount point"},
		{"mount within", func(t *testing.T, p string) { mountFS(t, "tmpfs", "t", mkdir(t, p, "sub"), 0, "") }, `it contains "sub"`},
		{"dead mount", func(t *testing.T, p string) { serveFuse(t, mkdir(t, p), false).die() }, "mount point"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := dir + "/" + tt.name
			tt.make(t, path)
			err := newHost(t).RemoveLeftover(path)
			_, there := os.Lstat(path)
			if tt.err == "" && (err != nil || !os.IsNotExist(there)) {
				t.Errorf("removed: %v, %v", err, there)
			}
			if tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err) || os.IsNotExist(there)) {
				t.Errorf("kept: %v, %v", err, there)
			}
		})
	}
	for _, below := range []string{"/file with data/x", "/empty directory/x"} {
		check(t, newHost(t).RemoveLeftover(dir+below))
	}
}

// TestContents checks the descriptions of paths, and that Contents does not open mounts.
func TestContents(t *testing.T) {
	dir := tempDir(t)
	tests := []struct {
		name  string
		make  func(t *testing.T, path string)
		want  Contents
		empty bool
	}{
		{"missing", func(*testing.T, string) {}, Contents{}, false},
		{"empty directory", func(t *testing.T, p string) { mkdir(t, p) }, Contents{Kind: KindDir}, true},
		{"full directory", func(t *testing.T, p string) { write(t, mkdir(t, p)+"/x", "") }, Contents{Kind: KindDir, Names: []string{"x"}}, false},
		{"empty file", func(t *testing.T, p string) { write(t, p, "") }, Contents{Kind: KindFile}, true},
		{"file", func(t *testing.T, p string) { write(t, p, "data") }, Contents{Kind: KindFile, Size: 4}, false},
		{"block device", func(t *testing.T, p string) { check(t, unix.Mknod(p, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0)))) }, Contents{Kind: KindDevice}, true},
		{"link", func(t *testing.T, p string) { check(t, os.Symlink("/", p)) }, Contents{Kind: KindOther}, false},
		{"mount", func(t *testing.T, p string) { mountFS(t, "tmpfs", "t", mkdir(t, p), 0, ""); write(t, p+"/x", "") }, Contents{Kind: KindDir, Mounted: true}, false},
		{"hung mount", func(t *testing.T, p string) { serveFuse(t, mkdir(t, p), false).sleep() }, Contents{Kind: KindDir, Mounted: true}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := dir + "/" + tt.name
			tt.make(t, path)
			got, err := newHost(t).Contents(t.Context(), path, -1, false)
			if len(got.Names) == 0 {
				got.Names = nil
			}
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%+v, %v, want %+v", got, err, tt.want)
			}
			if got.Empty() != tt.empty {
				t.Errorf("empty: %t", got.Empty())
			}
		})
	}
	for _, n := range []string{"a", "b", "c"} {
		mkdir(t, dir, "many", n)
	}
	if got, err := newHost(t).Contents(t.Context(), dir+"/many", 2, false); err != nil || len(got.Names) != 2 {
		t.Errorf("two of three: %+v, %v", got, err)
	}
	mountFS(t, "tmpfs", "t", mkdir(t, dir+"/root"), 0, "")
	write(t, dir+"/root/x", "")
	if got, err := newHost(t).Contents(t.Context(), dir+"/root", -1, true); err != nil || len(got.Names) != 1 {
		t.Errorf("through a mount: %+v, %v", got, err)
	}
}

// TestBlock checks the description of a loop device with a file, of a loop device with a deleted
// file, and of another device.
func TestBlock(t *testing.T) {
	dir := tempDir(t)
	h := newHost(t)
	h.sysfs = sysfs(dir)
	for path, text := range map[string]string{
		"7:0/uevent": "MAJOR=7\nDEVNAME=loop0\n", "7:0/loop/backing_file": "/a file\n", "7:1/uevent": "DEVNAME=loop1\n", "7:1/loop/backing_file": "/gone (deleted)\n", "8:0/uevent": "DEVNAME=sda\n",
	} {
		check(t, os.MkdirAll(filepath.Dir(dir+"/dev/block/"+path), 0o755))
		write(t, dir+"/dev/block/"+path, text)
	}
	for dev, want := range map[string]BlockDevice{
		"7:0": {Name: "loop0", Backing: "/a file"}, "7:1": {Name: "loop1", Backing: "/gone", Deleted: true}, "8:0": {Name: "sda"}, "8:16": {Gone: true}, "0:45": {},
	} {
		if got := h.Block(dev); got != want {
			t.Errorf("%s: %+v, want %+v", dev, got, want)
		}
	}
}
