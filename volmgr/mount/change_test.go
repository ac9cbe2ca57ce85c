package mount

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

func TestUnmount(t *testing.T) {
	dir := tempDir(t)
	h, ctx := newHost(t), context.Background()
	at := mkdir(t, dir, "m")
	mountFS(t, "tmpfs", "t", at, 0, "")
	mountFS(t, "ramfs", "t", at, 0, "")
	for _, want := range []string{"tmpfs", "", ""} { // the first unmount uncovers the tmpfs that the upper mount covered
		check(t, h.Unmount(ctx, at, Plain))
		if s := see(t, at); s.Identity.FSType != want {
			t.Errorf("uncovered %+v, want %q", s, want)
		}
	}
	for _, path := range []string{dir + "/no/such", write(t, dir+"/f", ""), dir + "/f/x", dir} {
		for _, how := range []How{Plain, Force, Lazy} {
			if err := h.Unmount(ctx, path, how); err != nil {
				t.Errorf("nothing to unmount at %q: %v", path, err)
			}
		}
	}

	mountFS(t, "tmpfs", "t", at, 0, "")
	check(t, os.Symlink(at, dir+"/link"))
	check(t, h.Unmount(ctx, dir+"/link", Plain))
	if s := see(t, at); s.Seen != volume.SeenMount {
		t.Errorf("a link was followed: %+v", s)
	}
	f, err := os.Create(at + "/file")
	check(t, err)
	for _, how := range []How{Plain, Force} {
		if err := h.Unmount(ctx, at, how); !errors.Is(err, unix.EBUSY) {
			t.Errorf("busy, unmount %d: %v", how, err)
		}
	}
	check(t, h.Unmount(ctx, at, Lazy))
	if s := see(t, at); s.Seen != volume.SeenNothing {
		t.Errorf("lazily unmounted: %+v", s)
	}
	check(t, f.Close())
}

func TestMakeReadOnly(t *testing.T) {
	dir := tempDir(t)
	now, old, older := hosts(t)
	older.noSetattr, old.noSetattr = true, true
	const kept = unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV
	for name, times := range map[string]uintptr{"relatime": unix.MS_RELATIME, "noatime": unix.MS_NOATIME, "strictatime": unix.MS_STRICTATIME, "nodiratime": unix.MS_STRICTATIME | unix.MS_NODIRATIME} {
		for _, h := range []*Host{now, old, older} {
			at := mkdir(t, dir, "m")
			mountFS(t, "tmpfs", "t", at, kept|times, "")
			bindAt(t, at, mkdir(t, dir, "other"))
			table := func() string {
				entries, err := h.table(nil)
				check(t, err)
				for _, m := range entries {
					if m.Mountpoint == at {
						return m.Options
					}
				}
				return ""
			}
			before := table()
			w, err := os.Create(at + "/open")
			check(t, err)
			if err := h.MakeReadOnly(context.Background(), at); !errors.Is(err, unix.EBUSY) {
				t.Errorf("open for writing: %v", err)
			}
			check(t, w.Close())
			check(t, h.MakeReadOnly(context.Background(), at))
			check(t, h.MakeReadOnly(context.Background(), at)) // the second call has nothing to do
			if got, want := table(), strings.Replace(before, "rw", "ro", 1); got != want {
				t.Errorf("%s: options %q, want %q", name, got, want)
			}
			if err := os.WriteFile(at+"/file", nil, 0o644); !errors.Is(err, unix.EROFS) {
				t.Errorf("write: %v", err)
			}
			if s := see(t, dir+"/other"); s.ReadOnly {
				t.Error("the same file system elsewhere became read-only")
			}
			for _, path := range []string{mkdir(t, at, "..", "plain"), dir + "/none"} {
				if err := h.MakeReadOnly(context.Background(), path); err == nil {
					t.Errorf("%q became read-only", path)
				}
			}
			detachUnder(t, dir)
		}
	}
}
