package treecopy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/sandbox"
)

// TestOpenedLink replaces a directory with a link just before the copier opens the directory. The
// copier must not follow the link.
func TestOpenedLink(t *testing.T) {
	data, out := t.TempDir(), t.TempDir()
	sandbox.Must(t, os.Symlink(out, filepath.Join(data, "dir")))
	dir, err := os.Open(data)
	sandbox.Must(t, err)
	if _, err := openDir(int(dir.Fd()), "dir"); !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a link was opened: %v", err)
	}
	sandbox.Must(t, dir.Close())
}

// TestReplacedWhileCopied replaces a file after the copier has opened it. The copy must have the
// content, the owner and the mode of the same file, not a mixture of both files.
func TestReplacedWhileCopied(t *testing.T) {
	dir := sandbox.ShortDir(t)
	from, to := sandbox.Mkdir(t, dir, "from"), sandbox.Mkdir(t, dir, "to")
	at := filepath.Join(from, "f")
	sandbox.Write(t, at, "trusted")
	sandbox.Must(t, os.Chmod(at, 0o755|os.ModeSetuid))
	sandbox.Must(t, unix.Lsetxattr(at, "user.note", []byte("trusted"), 0))
	in, err := os.Open(from)
	sandbox.Must(t, err)
	out, err := os.Open(to)
	sandbox.Must(t, err)
	// Describe the file before the copier opens it, because the description reads the file and so
	// changes its access time.
	want := sandbox.DescribeEntry(t, at)
	src, err := openBeneath(int(in.Fd()), "f", unix.O_PATH)
	sandbox.Must(t, err)
	sandbox.Write(t, filepath.Join(from, "g"), "not trusted")
	sandbox.Must(t, os.Rename(filepath.Join(from, "g"), at))
	copier := treeCopier{ctx: context.Background(), prog: &Progress{}, links: &hardLinks{}}
	_, err = copier.copy(src, int(out.Fd()), "f", 1)
	sandbox.Must(t, errors.Join(err, src.Close(), in.Close(), out.Close()))
	if got := sandbox.DescribeEntry(t, filepath.Join(to, "f")); got != want {
		t.Errorf("the copy is\n%s, and the file was\n%s", got, want)
	}
	sandbox.WantContent(t, filepath.Join(to, "f"), "trusted")
}

// TestCopyCancelled cancels the context of a running copy.
func TestCopyCancelled(t *testing.T) {
	dir := t.TempDir()
	src, err := os.Create(filepath.Join(dir, "src"))
	sandbox.Must(t, err)
	_, err = src.Write(make([]byte, 1<<20))
	sandbox.Must(t, err)
	dst, err := os.Create(filepath.Join(dir, "dst"))
	sandbox.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	p := &Progress{}
	sandbox.Must(t, Data(ctx, src, dst, 1<<20, p))
	if p.Done.Load() != 1<<20 {
		t.Errorf("the progress is %d", p.Done.Load())
	}
	cancel()
	if err := Data(ctx, src, dst, 1<<20, p); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	sandbox.Must(t, errors.Join(src.Close(), dst.Close()))
}

func TestMain(m *testing.M) { sandbox.RunTests(m, nil) }
