package mount

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRemoveLeftover(t *testing.T) {
	dir := tempDir(t)
	tests := []struct {
		name string
		make func(t *testing.T, path string)
		err  string // empty: it is removed
	}{
		{"missing", func(*testing.T, string) {}, ""},
		{"empty directory", func(t *testing.T, p string) { mkdir(t, p) }, ""},
		{"directory of mode 000", func(t *testing.T, p string) { check(t, os.Mkdir(p, 0)) }, ""},
		{"empty file", func(t *testing.T, p string) { write(t, p, "") }, ""},
		{"file of mode 000", func(t *testing.T, p string) { check(t, os.WriteFile(p, nil, 0)) }, ""},
		{"block device", func(t *testing.T, p string) { check(t, unix.Mknod(p, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0)))) }, ""},
		{"file with data", func(t *testing.T, p string) { write(t, p, "data") }, "it is a file of 4 bytes"},
		{"full directory", func(t *testing.T, p string) { write(t, mkdir(t, p)+"/a\nb", "") }, `it holds "a\nb"`},
		{"full directory of mode 000", func(t *testing.T, p string) { write(t, mkdir(t, p)+"/x", ""); check(t, os.Chmod(p, 0)) }, `it holds "x"`},
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
		{"mount within", func(t *testing.T, p string) { mountFS(t, "tmpfs", "t", mkdir(t, p, "sub"), 0, "") }, `it holds "sub"`},
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
