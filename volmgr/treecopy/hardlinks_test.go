package treecopy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/sandbox"
)

// onExt4 makes an ext4 with the given options of mkfs and mounts it.
func onExt4(t *testing.T, options ...string) string {
	t.Helper()
	sandbox.NeedLoops(t)
	disk := sandbox.ShortDir(t)
	img, dir := sandbox.SparseFile(t, filepath.Join(disk, "disk"), 64<<20), sandbox.Mkdir(t, disk, "mnt")
	sandbox.Command(t, "mkfs.ext4", append(options, "-q", "-F", img)...)
	sandbox.Command(t, "mount", "-o", "loop", img, dir)
	t.Cleanup(func() {
		sandbox.Must(t, unix.Unmount(dir, unix.UMOUNT_NOFOLLOW))
		sandbox.Await(t, "the device is free", func() bool { return len(sandbox.LoopsUnder(disk)) == 0 })
	})
	return dir
}

// inodeSizes contains the mkfs options for two kinds of ext4: with and without birth times.
var inodeSizes = map[string][]string{"with birth times": {"-I", "256"}, "without birth times": {"-I", "128"}}

// pair makes a file with two names. The content and mode of the file depend on n.
func pair(dir string, n int) error {
	one, two := filepath.Join(dir, fmt.Sprintf("%d.one", n)), filepath.Join(dir, fmt.Sprintf("%d.two", n))
	for _, p := range []string{one, two} {
		if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	fresh := filepath.Join(dir, fmt.Sprintf("%d.fresh", n))
	if err := os.WriteFile(fresh, []byte(strconv.Itoa(n)), 0o600); err != nil {
		return err
	}
	return errors.Join(os.Chmod(fresh, pairMode(n)), os.Link(fresh, two), os.Rename(fresh, one))
}

func pairMode(n int) os.FileMode { return os.FileMode(n%0o777) | 0o400 }

// wantOwnContent checks a copied tree of pairs. Each name must have the content and mode of its own
// file. The result linked counts the names that are still hard links.
func wantOwnContent(t *testing.T, dir string) (linked int) {
	t.Helper()
	list, err := os.ReadDir(dir)
	sandbox.Must(t, err)
	for _, e := range list {
		if e.IsDir() {
			continue // skip linksDir, which exists only during the copy
		}
		name, end, _ := strings.Cut(e.Name(), ".")
		n, err := strconv.Atoi(name)
		sandbox.Must(t, err)
		raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
		sandbox.Must(t, err)
		var st unix.Stat_t
		sandbox.Must(t, unix.Stat(filepath.Join(dir, e.Name()), &st))
		// If the file was copied before it was complete, it may have no content or mode yet. It
		// must never have those of another file.
		early := end == "fresh" || st.Nlink == 1
		if string(raw) != name && (!early || len(raw) > 0) {
			t.Errorf("%s has the content of %q", e.Name(), raw)
		}
		if mode := os.FileMode(st.Mode & 0o7777); mode != pairMode(n) && (!early || mode != 0o600) {
			t.Errorf("%s has mode %o, not %o", e.Name(), mode, pairMode(n))
		}
		if st.Nlink == 2 {
			linked++
		}
	}
	return linked
}

// copierOf returns a function that copies single entries of one directory to another.
func copierOf(t *testing.T, src, dst string) (entry func(name string)) {
	t.Helper()
	from, err := os.Open(src)
	sandbox.Must(t, err)
	to, err := os.Open(dst)
	sandbox.Must(t, err)
	links, err := newHardLinks(int(to.Fd()))
	sandbox.Must(t, err)
	t.Cleanup(func() {
		sandbox.Must(t, errors.Join(links.clear(), links.close(), from.Close(), to.Close()))
	})
	c := treeCopier{ctx: context.Background(), prog: &Progress{}, links: links}
	return func(name string) {
		t.Helper()
		sandbox.Must(t, c.entry(int(from.Fd()), name, int(to.Fd()), name, 0))
	}
}

// TestInodeReused deletes a file that the copier has already copied, so that another file gets the
// same inode number. The copier must not mistake the other file for the deleted one.
func TestInodeReused(t *testing.T) {
	for name, options := range inodeSizes {
		t.Run(name, func(t *testing.T) {
			dir := onExt4(t, options...)
			src, dst := sandbox.Mkdir(t, dir, "src"), sandbox.Mkdir(t, dir, "dst")
			one := copierOf(t, src, dst)
			for n := 1; n < 50; n++ {
				sandbox.Must(t, pair(src, n))
				one(fmt.Sprintf("%d.one", n))
				sandbox.Must(t, errors.Join(os.Remove(filepath.Join(src, fmt.Sprintf("%d.one", n))), os.Remove(filepath.Join(src, fmt.Sprintf("%d.two", n)))))
				sandbox.Must(t, pair(src, n+1000))
				one(fmt.Sprintf("%d.one", n+1000))
				one(fmt.Sprintf("%d.two", n+1000))
			}
			wantOwnContent(t, dst)
		})
	}
}

// TestCopyUnderReuse copies a tree repeatedly. Meanwhile, the files in the tree are deleted and
// made again, so that they reuse each other's inodes.
func TestCopyUnderReuse(t *testing.T) {
	const pairs = 40
	for name, options := range inodeSizes {
		t.Run(name, func(t *testing.T) {
			dir := onExt4(t, options...)
			src := sandbox.Mkdir(t, dir, "src")
			ctx, stop := context.WithCancel(context.Background())
			var churn sync.WaitGroup
			for half := range 2 {
				churn.Go(func() {
					for i := 0; ctx.Err() == nil; i++ {
						if err := pair(src, 2*(i*7%pairs)+half); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			for i := range 40 {
				dst := filepath.Join(sandbox.Mkdir(t, dir, fmt.Sprint("dst", i)), "copy")
				sandbox.Must(t, Tree(context.Background(), src, dst, &Progress{}))
				wantOwnContent(t, dst)
			}
			stop()
			churn.Wait()
		})
	}
}

// TestManyHardLinks copies a tree with many files that have two names. The tree has more of these
// files than the copier keeps open.
func TestManyHardLinks(t *testing.T) {
	const more = 50
	for name, options := range inodeSizes {
		t.Run(name, func(t *testing.T) {
			dir := onExt4(t, append(options, "-N", "8192")...)
			src, dst := sandbox.Mkdir(t, dir, "src"), filepath.Join(dir, "dst")
			for n := range maxPins + more {
				sandbox.Must(t, pair(src, n))
			}
			sandbox.Must(t, Tree(context.Background(), src, dst, &Progress{}))
			want := 2 * (maxPins + more)
			if name == "without birth times" {
				want = 2 * maxPins
			}
			if got := wantOwnContent(t, dst); got != want {
				t.Errorf("%d names of the copy have another one, want %d", got, want)
			}
		})
	}
}
