package filetree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openDir(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	check(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// nest makes nested directories, each with one file. The path of the innermost directory is longer
// than the kernel's limit for a path.
func nest(t *testing.T, root string, levels int, name string) {
	t.Helper()
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	check(t, err)
	for range levels {
		check(t, unix.Mkdirat(fd, name, 0o755))
		below, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		check(t, err)
		check(t, unix.Close(fd))
		fd = below
		file, err := unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY, 0o644)
		check(t, err)
		check(t, unix.Close(file))
	}
	check(t, unix.Close(fd))
}

// TestBelowOrder checks that the walk visits each file once, and visits a directory after the files
// in it.
func TestBelowOrder(t *testing.T) {
	root := t.TempDir()
	check(t, os.MkdirAll(root+"/a/b", 0o755))
	check(t, os.MkdirAll(root+"/c", 0o755))
	for _, file := range []string{"top", "a/one", "a/b/two", "c/three"} {
		check(t, os.WriteFile(filepath.Join(root, file), nil, 0o644))
	}
	check(t, os.Symlink("/", root+"/c/link"))
	at := map[string]int{}
	n := 0
	check(t, Below(t.Context(), openDir(t, root), func(fd int, _ *unix.Statx_t) error {
		path, err := os.Readlink(nameOf(fd))
		n++
		at[strings.TrimPrefix(path, root+"/")] = n
		return err
	}))
	if len(at) != 8 || n != 8 {
		t.Fatalf("%d visits of %d files, want 8: %v", n, len(at), at)
	}
	for below, above := range map[string]string{"a/one": "a", "a/b": "a", "a/b/two": "a/b", "c/three": "c", "c/link": "c"} {
		if at[below] == 0 || at[below] > at[above] {
			t.Errorf("%s was visited as number %d, its directory %s as number %d", below, at[below], above, at[above])
		}
	}
}

// TestBelowDeep walks a tree with more levels than the number of files that the process may open.
func TestBelowDeep(t *testing.T) {
	const levels = 3000
	root := t.TempDir()
	nest(t, root, levels, "directory")
	nest(t, root, 70, "other") // a second branch makes the walk return to the root
	visits, most := 0, 0
	check(t, Below(t.Context(), openDir(t, root), func(fd int, _ *unix.Statx_t) error {
		visits++
		most = max(most, fd)
		return nil
	}))
	if want := 2 * (levels + 70); visits != want {
		t.Errorf("%d visits, want %d", visits, want)
	}
	if most > maxOpen+60 {
		t.Errorf("descriptor %d was in use: the walk keeps too many directories open", most)
	}
}

// TestBelowError checks that an error contains the path of the file only once, and in a short form
// if the file is deep in the tree.
func TestBelowError(t *testing.T) {
	root := t.TempDir()
	nest(t, root, 1500, strings.Repeat("x", 200))
	refused := errors.New("refused")
	visits := 0
	err := Below(t.Context(), openDir(t, root), func(int, *unix.Statx_t) error {
		if visits++; visits == 1400 {
			return refused
		}
		return nil
	})
	if !errors.Is(err, refused) || len(err.Error()) > 300 {
		t.Errorf("got an error of %d bytes: %.400v", len(fmt.Sprint(err)), err)
	}
	check(t, os.WriteFile(root+"/file", nil, 0o644))
	err = Below(t.Context(), openDir(t, root), func(int, *unix.Statx_t) error { return refused })
	if err == nil || err.Error() != `"file": refused` {
		t.Errorf("got %v", err)
	}
}

// TestBelowMoved moves a directory to another parent while the walk is deep inside it. The walk
// must not continue in the other parent.
func TestBelowMoved(t *testing.T) {
	root, elsewhere := t.TempDir(), t.TempDir()
	nest(t, root, 3*maxOpen, "d")
	visits := 0
	var outside []string
	err := Below(t.Context(), openDir(t, root), func(fd int, _ *unix.Statx_t) error {
		if visits++; visits == 3*maxOpen { // now the walk is at the innermost file
			check(t, os.Rename(root+"/d/d/d", elsewhere+"/d"))
		}
		if path, _ := os.Readlink(nameOf(fd)); path == elsewhere {
			outside = append(outside, path)
		}
		return nil
	})
	if !errors.Is(err, errMoved) {
		t.Errorf("got %v", err)
	}
	if len(outside) > 0 {
		t.Errorf("visited outside of the root: %q", outside)
	}
}

// TestBelowEnds checks that the walk stops when its context ends.
func TestBelowEnds(t *testing.T) {
	root := t.TempDir()
	nest(t, root, 5, "d")
	ctx, cancel := context.WithCancel(t.Context())
	visits := 0
	err := Below(ctx, openDir(t, root), func(int, *unix.Statx_t) error {
		visits++
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) || visits != 1 {
		t.Errorf("%d visits, then %v", visits, err)
	}
}
