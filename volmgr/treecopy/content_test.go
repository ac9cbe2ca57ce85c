package treecopy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/sandbox"
)

// trees makes two directories with a scratch directory, and returns the content to copy.
func trees(t *testing.T) (c Content, src, dst string) {
	t.Helper()
	dir := sandbox.ShortDir(t)
	src, dst = sandbox.Mkdir(t, dir, "src"), sandbox.Mkdir(t, dir, "dst")
	open := func(path string) *os.File {
		f, err := os.Open(path)
		sandbox.Must(t, err)
		t.Cleanup(func() { sandbox.Must(t, f.Close()) })
		return f
	}
	skip := func(name string) bool { return name == ".scratch" }
	scratch := sandbox.Mkdir(t, dst, ".scratch")
	return Content{From: open(src), To: open(dst), Scratch: open(scratch), Skip: skip, Progress: &Progress{}}, src, dst
}

// fill makes one file of each kind.
func fill(t *testing.T, src string) {
	t.Helper()
	in := func(name string) string { return filepath.Join(src, name) }
	sandbox.Must(t, os.Chmod(sandbox.Mkdir(t, src, "dir"), 0o750|os.ModeSticky))
	sandbox.Must(t, os.Chown(in("dir"), 7, 8))
	sandbox.Write(t, in("dir/one"), "hello")
	sandbox.Must(t, os.Link(in("dir/one"), in("dir/two")))
	sandbox.Write(t, in("program"), "run me")
	sandbox.Must(t, os.Chown(in("program"), 1234, 5678))
	sandbox.Must(t, unix.Chmod(in("program"), 0o6755))
	sandbox.Must(t, unix.Lsetxattr(in("program"), "user.note", []byte("a\x00b"), 0))
	sandbox.Must(t, os.Symlink("/etc/shadow", in("link")))
	sandbox.Must(t, os.Lchown(in("link"), 9, 9))
	sandbox.Must(t, os.Symlink("../../..", in("out")))
	sandbox.Must(t, unix.Mkfifo(in("pipe"), 0o640))
	sandbox.Must(t, unix.Mknod(in("socket"), unix.S_IFSOCK|0o600, 0))
	// A new name of a device needs a right that a user namespace does not give. Zero is an overlay's
	// mark of a removed file, which every user may make.
	sandbox.Must(t, unix.Mknod(in("device"), unix.S_IFCHR|0o600, int(unix.Mkdev(0, 0))))
	sparse := sandbox.SparseFile(t, in("sparse"), 64<<20)
	f, err := os.OpenFile(sparse, os.O_WRONLY, 0)
	sandbox.Must(t, err)
	_, err = f.WriteAt([]byte("middle"), 32<<20)
	sandbox.Must(t, errors.Join(err, f.Close()))
	list := []byte{2, 0, 0, 0} // the version of the format; then tag, rights and id of each entry
	for _, e := range []struct {
		tag, rights uint16
		id          uint32
	}{{1, 7, ^uint32(0)}, {2, 5, 1000}, {4, 0, ^uint32(0)}, {16, 7, ^uint32(0)}, {32, 0, ^uint32(0)}} {
		list = binary.LittleEndian.AppendUint16(list, e.tag)
		list = binary.LittleEndian.AppendUint16(list, e.rights)
		list = binary.LittleEndian.AppendUint32(list, e.id)
	}
	sandbox.Must(t, unix.Lsetxattr(in("dir"), "system.posix_acl_default", list, 0))
	sandbox.Must(t, unix.Lsetxattr(in("dir/one"), "system.posix_acl_access", list, 0))
	old := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
	for _, name := range []string{"dir/one", "program", "dir"} {
		sandbox.Must(t, os.Chtimes(in(name), old, old))
	}
	sandbox.Must(t, os.Chmod(src, 0o711))
	sandbox.Must(t, os.Chown(src, 99, 98))
}

// equal asserts that a comparison finds the trees equal.
func equal(t *testing.T, c Content) Comparison {
	t.Helper()
	got, err := c.Compare(t.Context())
	sandbox.Must(t, err)
	if len(got.Differences) > 0 {
		t.Errorf("differences:\n%s", strings.Join(got.Differences, "\n"))
	}
	return got
}

// TestContent copies one file of each kind. The test describes the trees on its own, so it does not
// rely on the comparison.
func TestContent(t *testing.T) {
	c, src, dst := trees(t)
	fill(t, src)
	want := map[string]string{}
	sandbox.Must(t, filepath.WalkDir(src, func(path string, _ os.DirEntry, err error) error {
		want[strings.TrimPrefix(path, src)] = sandbox.DescribeEntry(t, path)
		return err
	}))
	size, err := Measure(t.Context(), c.From, c.Skip)
	sandbox.Must(t, err)
	if size.Files != int64(len(want)-1) || size.Bytes == 0 || size.Bytes > 1<<20 {
		t.Errorf("the size is %+v", size)
	}

	sandbox.Must(t, c.Copy(t.Context()))
	sandbox.Must(t, filepath.WalkDir(dst, func(path string, _ os.DirEntry, err error) error {
		name := strings.TrimPrefix(path, dst)
		if strings.HasPrefix(name, "/.scratch") {
			return err
		}
		if got := sandbox.DescribeEntry(t, path); got != want[name] {
			t.Errorf("the copy of %q is\n%s, and the file is\n%s", name, got, want[name])
		}
		delete(want, name)
		return err
	}))
	if len(want) > 0 {
		t.Errorf("missing: %q", want)
	}

	var st, one, two unix.Stat_t
	sandbox.Must(t, unix.Stat(dst+"/sparse", &st))
	if st.Size != 64<<20 || st.Blocks*512 > 1<<20 {
		t.Errorf("the sparse copy has %d bytes, %d blocks", st.Size, st.Blocks)
	}
	sandbox.Must(t, unix.Stat(dst+"/dir/one", &one))
	sandbox.Must(t, unix.Stat(dst+"/dir/two", &two))
	if one.Ino != two.Ino {
		t.Error("the two names of a file became two files")
	}
	if got := equal(t, c); got.Files != size.Files || got.Bytes < 64<<20 {
		t.Errorf("compared %+v", got)
	}
}

// TestCompare changes the copy, or the source after the copy, in one point. The comparison must name
// the file.
func TestCompare(t *testing.T) {
	for name, c := range map[string]struct {
		change func(src, dst string) error
		want   string
	}{
		"content":    {func(_, dst string) error { return rewrite(dst+"/program", "RUN me") }, `"program" has another content`},
		"size":       {func(_, dst string) error { return os.Truncate(dst+"/program", 5) }, `"program" has 6 bytes, and 5 in`},
		"hole":       {func(_, dst string) error { return writeAt(dst+"/sparse", 1<<20) }, `"sparse" has another content`},
		"mode":       {func(_, dst string) error { return os.Chmod(dst+"/dir/one", 0o600) }, `"dir/one" has the mode`},
		"owner":      {func(_, dst string) error { return os.Lchown(dst+"/link", 1, 1) }, `"link" has the owner 9:9, and 1:1 in`},
		"time":       {func(_, dst string) error { return os.Chtimes(dst+"/dir", time.Now(), time.Now()) }, `"dir" has another modification time`},
		"xattr":      {func(_, dst string) error { return unix.Lsetxattr(dst+"/program", "user.note", []byte("x"), 0) }, `"program" has another extended attribute "user.note"`},
		"more xattr": {func(_, dst string) error { return unix.Lsetxattr(dst+"/program", "user.more", nil, 0) }, `"program" has the extended attribute "user.more" only`},
		"acl":        {func(_, dst string) error { return unix.Lremovexattr(dst+"/dir", "system.posix_acl_default") }, `"dir" has another extended attribute "system.posix_acl_default"`},
		"target": {func(_, dst string) error {
			return replace(dst+"/out", func(p string) error { return os.Symlink("..", p) })
		}, `"out" leads elsewhere`},
		"kind": {func(_, dst string) error {
			return replace(dst+"/pipe", func(p string) error { return os.Mkdir(p, 0o700) })
		}, `"pipe" has another file type`},
		"missing":      {func(_, dst string) error { return os.Remove(dst + "/link") }, `"link" is missing`},
		"added":        {func(_, dst string) error { return os.WriteFile(dst+"/dir/new", nil, 0o600) }, `"dir/new" exists only in the copy`},
		"split":        {func(_, dst string) error { return split(dst + "/dir/two") }, `"dir/two" has other names`},
		"root":         {func(_, dst string) error { return os.Chmod(dst, 0o700) }, `"." has the mode 0711, and 0700 in`},
		"source":       {func(src, _ string) error { return rewrite(src+"/program", "changed") }, `"program" has`},
		"source added": {func(src, _ string) error { return os.WriteFile(src+"/late", nil, 0o600) }, `"late" is missing in the copy`},
	} {
		t.Run(name, func(t *testing.T) {
			content, src, dst := trees(t)
			fill(t, src)
			sandbox.Must(t, content.Copy(t.Context()))
			sandbox.Must(t, c.change(src, dst))
			got, err := content.Compare(t.Context())
			sandbox.Must(t, err)
			if !strings.Contains(strings.Join(got.Differences, "\n"), c.want) {
				t.Errorf("the differences are %q, not %s", got.Differences, c.want)
			}
		})
	}
}

// rewrite changes the content of a file, and keeps its attributes.
func rewrite(path, text string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close(), unix.Chmod(path, 0o6755), os.Chtimes(path, st.ModTime(), st.ModTime()))
}

func writeAt(path string, at int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte("x"), at)
	return errors.Join(err, f.Close())
}

func replace(path string, with func(string) error) error {
	return errors.Join(os.Remove(path), with(path))
}

// split makes a separate file of one name of a file.
func split(path string) error {
	raw, err := os.ReadFile(path)
	return errors.Join(err, os.Remove(path), os.WriteFile(path, raw, 0o600))
}

// TestManyDifferences checks that a comparison ends when it has found enough differences.
func TestManyDifferences(t *testing.T) {
	c, src, _ := trees(t)
	for n := range 3 * maxDifferences {
		sandbox.Write(t, filepath.Join(src, fmt.Sprint(n)), "")
	}
	if got, err := c.Compare(t.Context()); err != nil || len(got.Differences) != maxDifferences {
		t.Errorf("%d differences, %v", len(got.Differences), err)
	}
}

// TestResume copies again into the result of a copy that did not finish. The copy must keep the
// complete files, and replace everything else.
func TestResume(t *testing.T) {
	c, src, dst := trees(t)
	fill(t, src)
	sandbox.Must(t, c.Copy(t.Context()))
	inode := func(name string) uint64 {
		var st unix.Stat_t
		sandbox.Must(t, unix.Lstat(filepath.Join(dst, name), &st))
		return st.Ino
	}
	kept, outside := inode("sparse"), filepath.Join(filepath.Dir(dst), "outside")
	sandbox.Write(t, outside, "do not touch")
	before := sandbox.DescribeEntry(t, outside)
	sandbox.Must(t, errors.Join(
		os.Chmod(dst+"/sparse", 0o604),
		rewrite(dst+"/program", "\x00\x00\x00\x00\x00\x00"), // as after a loss of power
		replace(dst+"/dir/one", func(p string) error { return os.Symlink(outside, p) }),
		replace(dst+"/pipe", func(p string) error { return os.Mkdir(p, 0o700) }),
		os.Remove(dst+"/link"),
		os.Mkdir(dst+"/.scratch/links", 0o700), os.WriteFile(dst+"/.scratch/links/1-2-3", nil, 0o600),
	))

	sandbox.Must(t, c.Copy(t.Context()))
	equal(t, c)
	if inode("sparse") != kept {
		t.Error("a complete file was copied again")
	}
	if got := sandbox.DescribeEntry(t, outside); got != before {
		t.Errorf("the file outside is\n%s, and was\n%s", got, before)
	}

	sandbox.Must(t, os.WriteFile(dst+"/dir/extra", nil, 0o600))
	sandbox.Must(t, os.RemoveAll(src+"/dir"))
	sandbox.Write(t, src+"/dir", "a file now")
	if err := c.Copy(t.Context()); err == nil || !strings.Contains(err.Error(), `"dir": the copy has a directory there`) {
		t.Errorf("a directory with files was replaced: %v", err)
	}
}

// TestEscape plants links to directories outside of both trees. Neither the copy nor the comparison
// may follow them.
func TestEscape(t *testing.T) {
	c, src, dst := trees(t)
	outside := sandbox.Mkdir(t, filepath.Dir(dst), "outside")
	sandbox.Write(t, filepath.Join(outside, "secret"), "secret")
	sandbox.Write(t, filepath.Join(sandbox.Mkdir(t, src, "dir"), "file"), "x")
	sandbox.Must(t, os.Symlink(outside, dst+"/dir"))

	// An earlier run has a link where the source has a directory. The copy replaces the link.
	sandbox.Must(t, c.Copy(t.Context()))
	equal(t, c)
	if _, err := os.Lstat(outside + "/file"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the copy left its tree: %v", err)
	}

	// A process that replaces the directory after the copier has looked at it.
	sandbox.Must(t, replace(dst+"/dir/file", func(string) error { return nil }))
	sandbox.Must(t, replace(dst+"/dir", func(p string) error { return os.Symlink(outside, p) }))
	in, err := openBeneath(int(c.From.Fd()), "dir", unix.O_PATH)
	sandbox.Must(t, err)
	copier := treeCopier{ctx: t.Context(), prog: &Progress{}, links: &hardLinks{}, resume: true}
	if err := copier.dir(in, int(c.To.Fd()), "dir", 1); !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("the copier followed a link: %v", err)
	}
	st, err := StatOpen(c.From)
	sandbox.Must(t, err)
	before := sandbox.DescribeEntry(t, outside)
	_ = settleEntry(xattrsOf(c.From), int(c.To.Fd()), "dir", st) // it sets the attributes of the link itself
	if got := sandbox.DescribeEntry(t, outside); got != before {
		t.Errorf("the attributes of a file outside became\n%s, and were\n%s", got, before)
	}

	// A link in the source, beside a directory in the copy.
	sandbox.Must(t, replace(dst+"/dir", func(p string) error { return os.Mkdir(p, 0o755) }))
	sandbox.Must(t, errors.Join(os.RemoveAll(src+"/dir"), os.Symlink(outside, src+"/dir")))
	got, err := c.Compare(t.Context())
	sandbox.Must(t, err)
	if text := strings.Join(got.Differences, "\n"); !strings.Contains(text, `"dir" has another file type`) || strings.Contains(text, "secret") {
		t.Errorf("the differences are %q", got.Differences)
	}
}

// TestMountInside checks that neither a copy nor a comparison enters a mount below the source.
func TestMountInside(t *testing.T) {
	c, src, _ := trees(t)
	sandbox.Tmpfs(t, sandbox.Mkdir(t, src, "inside"), "")
	for name, err := range map[string]error{
		"copy": c.Copy(t.Context()),
		"measure": func() error {
			_, err := Measure(t.Context(), c.From, c.Skip)
			return err
		}(),
	} {
		if !errors.Is(err, ErrMountInside) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOtherFilesystem copies to a filesystem of another type, between which the kernel cannot copy
// data by itself.
func TestOtherFilesystem(t *testing.T) {
	c, src, dst := trees(t)
	fill(t, src)
	sandbox.Tmpfs(t, dst, "size=8m")
	scratch := sandbox.Mkdir(t, dst, ".scratch")
	to, err := os.Open(dst)
	sandbox.Must(t, err)
	c.To = to
	c.Scratch, err = os.Open(scratch)
	sandbox.Must(t, err)
	sandbox.Must(t, unix.Lremovexattr(src+"/program", "user.note")) // older kernels refuse it on tmpfs
	sandbox.Must(t, c.Copy(t.Context()))
	equal(t, c)
	if err := Room(to, 9<<20); !errors.As(err, new(*SpaceError)) {
		t.Errorf("more than the filesystem has: %v", err)
	}
	if err := errors.Join(Room(to, 1<<20), RoomForFiles(to, 1)); err != nil {
		t.Errorf("less than the filesystem has: %v", err)
	}
	sandbox.Must(t, errors.Join(c.Scratch.Close(), to.Close()))
}

// TestCopyInterrupted checks that a copy and a comparison end with their context.
func TestCopyInterrupted(t *testing.T) {
	c, src, _ := trees(t)
	fill(t, src)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Copy(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("copy: %v", err)
	}
	if _, err := c.Compare(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("compare: %v", err)
	}
}
