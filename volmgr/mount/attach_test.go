package mount

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

// attachAt opens a place at dst and bind-mounts src on it.
func attachAt(h *Host, src, dst string, opts Options) (volume.Sight, error) {
	p, err := h.OpenPlace(context.Background(), dst)
	if err != nil {
		return volume.Sight{}, err
	}
	defer p.Close()
	return p.Attach(context.Background(), src, opts)
}

func TestAttach(t *testing.T) {
	dir := tempDir(t)
	src, dst := mkdir(t, dir, "src"), mkdir(t, dir, "d s\nt")
	mountFS(t, "tmpfs", "t", mkdir(t, src, "sub"), 0, "")
	write(t, src+"/file", "x")
	old := newHost(t)
	old.noSetattr = true
	for name, h := range map[string]*Host{"now": newHost(t), "without mount_setattr": old} {
		s, err := attachAt(h, src, dst, Options{ReadOnly: true})
		check(t, err)
		if seen := see(t, dst); seen != s || !s.ReadOnly || s.Seen != volume.SeenMount {
			t.Errorf("%s: bound as %+v, seen as %+v", name, s, seen)
		}
		if err := os.WriteFile(dst+"/x", nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: a write: %v", name, err)
		}
		if s := see(t, dst+"/sub"); s.Seen != volume.SeenNothing {
			t.Errorf("%s: what is mounted below came too: %+v", name, s)
		}
		check(t, h.Unmount(t.Context(), dst, Plain))
		if !h.Gone(s.Identity, dst) {
			t.Errorf("%s: it is not gone", name)
		}
	}
	h := newHost(t)
	check(t, os.Symlink(dst, dir+"/link"))
	for dst, want := range map[string]string{
		dir + "/link":     "it contains a symbolic link; use the path " + dst + " instead",
		dir + "/link/sub": "no such file",
		dir + "/none":     "no such file",
		src + "/file":     "invalid argument",
		dir + "/none/":    "no such file",
	} {
		if _, err := attachAt(h, src, dst, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("bind at %q: %v", dst, err)
		}
	}
	if _, err := attachAt(h, dir+"/none", dst, Options{}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("bind of nothing: %v", err)
	}
	if _, err := attachAt(h, src, dst, Options{Flags: []string{"fast"}}); err == nil || see(t, dst).Seen != volume.SeenNothing {
		t.Errorf("an unknown option: %v, and it shows %+v", err, see(t, dst))
	}
}

// TestAttachFlags checks that Attach sets the options of one mount only, and that it sets them
// before the mount is visible.
func TestAttachFlags(t *testing.T) {
	dir := tempDir(t)
	src, dst := mkdir(t, dir, "src"), mkdir(t, dir, "dst")
	mountFS(t, "tmpfs", "t", src, unix.MS_NOATIME, "")
	h := newHost(t)
	for _, tt := range []struct {
		flags []string
		want  []string // options that the mount table must show
		not   []string
	}{
		{nil, []string{"noatime"}, []string{"nosuid", "nodev"}},
		{[]string{"nosuid", "nodev", "noexec", "nosymfollow", "nodiratime"}, []string{"nosuid", "nodev", "noexec", "nosymfollow", "nodiratime", "noatime"}, nil},
		{[]string{"relatime"}, []string{"relatime"}, []string{"noatime"}},
		{[]string{"strictatime"}, nil, []string{"noatime", "relatime"}},
	} {
		_, err := attachAt(h, src, dst, Options{Flags: tt.flags})
		check(t, err)
		p, err := h.OpenPlace(t.Context(), dst)
		check(t, err)
		top, err := p.top()
		check(t, err)
		for _, f := range tt.want {
			if !hasOption(top.Options, f) {
				t.Errorf("%v: it has %s, and not %s", tt.flags, top.Options, f)
			}
		}
		for _, f := range tt.not {
			if hasOption(top.Options, f) {
				t.Errorf("%v: it has %s, with %s", tt.flags, top.Options, f)
			}
		}
		if s := p.Look(); s.Identity != see(t, dst).Identity {
			t.Errorf("the table shows %+v, a look %+v", s, see(t, dst))
		}
		for _, p := range []*Place{p, {h: h, path: dst, lent: true}} {
			if err := p.SetOptions(t.Context(), Options{Flags: tt.flags}); err != nil {
				t.Errorf("%v: it is not as it was made: %v", tt.flags, err)
			}
		}
		lent := &Place{h: h, path: dst, lent: true}
		if err := lent.SetOptions(t.Context(), Options{ReadOnly: true}); err == nil {
			t.Errorf("%v: it is taken for read-only", tt.flags)
		}
		p.Close()
		check(t, h.Unmount(t.Context(), dst, Plain))
	}
}

// TestBorrow checks that BorrowPlace accepts a descriptor only from a process in this mount
// namespace, and only if the descriptor refers to the given path.
func TestBorrow(t *testing.T) {
	dir := tempDir(t)
	src, dst := mkdir(t, dir, "src"), mkdir(t, dir, "dst")
	write(t, src+"/file", "x")
	h := newHost(t)
	held, err := os.OpenFile(dst, unix.O_PATH, 0)
	check(t, err)
	p, err := h.BorrowPlace(os.Getpid(), int(held.Fd()), dst)
	check(t, err)
	check(t, held.Close())
	if _, err := p.Attach(t.Context(), src, Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dst + "/file"); err != nil {
		t.Error(err)
	}
	if s := p.Look(); s.Identity != see(t, dst).Identity {
		t.Errorf("the table shows %+v, a look %+v", s, see(t, dst))
	}
	p.Close()
	check(t, h.Unmount(t.Context(), dst, Plain))

	sleeper := exec.Command("sleep", "600")
	sleeper.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	check(t, sleeper.Start())
	t.Cleanup(func() { _, _ = sleeper.Process.Kill(), sleeper.Wait() })
	here, err := os.Open(dst)
	check(t, err)
	defer func() { check(t, here.Close()) }()
	for _, tt := range []struct {
		pid, fd int
		path    string
		want    string
	}{
		{os.Getpid(), int(here.Fd()), src, "is open on " + dst + ", and not on " + src},
		{os.Getpid(), 9999, dst, "no such file"},
		{sleeper.Process.Pid, 0, dst, "in another mount namespace than the agent"},
		{1 << 30, 0, dst, "cannot look at pid"},
	} {
		if _, err := h.BorrowPlace(tt.pid, tt.fd, tt.path); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("descriptor %d of %d for %s: %v, want %q", tt.fd, tt.pid, tt.path, err, tt.want)
		}
	}
}

// TestGone checks that Gone returns true after an unmount, even if another mount now has the same
// mount point.
func TestGone(t *testing.T) {
	dir := tempDir(t)
	src, dst, other := mkdir(t, dir, "src"), mkdir(t, dir, "dst"), mkdir(t, dir, "other")
	now, before := newHost(t), newHost(t)
	before.noStatmount, before.noMountRoot = true, true
	s, err := attachAt(now, src, dst, Options{})
	check(t, err)
	old := s.Identity
	old.ID = 0
	if now.Gone(s.Identity, dst) || before.Gone(old, dst) {
		t.Error("it is gone")
	}
	elsewhere := s.Identity
	elsewhere.Namespace++
	if now.Gone(elsewhere, dst) {
		t.Error("a mount of another namespace is gone")
	}
	elsewhere = s.Identity
	elsewhere.Boot = "before"
	if !now.Gone(elsewhere, dst) {
		t.Error("a mount of an earlier boot is there")
	}
	mountFS(t, "tmpfs", "t", dst, 0, "") // this mount covers the mount at dst
	if now.Gone(s.Identity, dst) || before.Gone(old, dst) {
		t.Error("it is gone once something lies over it")
	}
	check(t, now.Unmount(t.Context(), dst, Plain))
	check(t, unix.Mount(dst, other, "", unix.MS_MOVE, ""))
	if now.Gone(s.Identity, dst) {
		t.Error("it is gone once it is elsewhere")
	}
	check(t, unix.Mount(other, dst, "", unix.MS_MOVE, ""))
	check(t, now.Unmount(t.Context(), dst, Lazy))
	if !now.Gone(s.Identity, dst) || !before.Gone(old, dst) {
		t.Error("it is there after an unmount")
	}
	again, err := attachAt(now, src, dst, Options{})
	check(t, err)
	if !now.Gone(s.Identity, dst) || now.Gone(again.Identity, dst) {
		t.Error("another bind of the same is taken for it")
	}
	check(t, now.Unmount(t.Context(), dst, Plain))
}

// TestChanges checks that Changes reports changes of the mount table, combines several changes into
// one call, and returns when its context ends.
func TestChanges(t *testing.T) {
	h, at := newHost(t), mkdir(t, tempDir(t), "m")
	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- h.Changes(ctx, time.Millisecond, func() {
			select {
			case told <- struct{}{}:
			case <-ctx.Done():
			}
		})
	}()
	<-told // the first call of the function means that Changes now watches the mount table
	for range 3 {
		mountFS(t, "tmpfs", "t", at, 0, "")
		<-told
		check(t, h.Unmount(ctx, at, Plain))
		<-told
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	h.procfs = "/nowhere"
	if err := h.Changes(t.Context(), 0, func() {}); err == nil {
		t.Error("a table that is not there is watched")
	}
}
