package mount

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// optionsOf returns the options of the uppermost mount at a path, as the mount table shows them.
func optionsOf(t *testing.T, path string) []string {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	var options []string
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); f[4] == path {
			options = strings.Split(f[5], ",")
		}
	}
	if options == nil {
		t.Fatalf("nothing is mounted at %s", path)
	}
	return options
}

// TestRestrict checks that Restrict adds options and keeps the existing ones. On kernels that
// support it, the mounts below must get the new options too.
func TestRestrict(t *testing.T) {
	ctx := t.Context()
	old := newHost(t)
	old.noSetattr = true
	for name, h := range map[string]*Host{"now": newHost(t), "without mount_setattr": old} {
		dir := mkdir(t, tempDir(t), "d")
		mountFS(t, "tmpfs", "t", dir, unix.MS_NODIRATIME|unix.MS_RDONLY|unix.MS_NOATIME, "")
		sub := ""
		if !h.noSetattr {
			check(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOATIME|unix.MS_NODIRATIME, ""))
			check(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_NOATIME|unix.MS_NODIRATIME, ""))
			sub = mkdir(t, dir, "sub")
			mountFS(t, "tmpfs", "s", sub, 0, "")
		}
		check(t, h.Restrict(ctx, dir, []string{"nosuid", "nodev", "noexec"}))
		want := []string{"nosuid", "nodev", "noexec", "noatime", "nodiratime"}
		if h.noSetattr {
			want = append(want, "ro")
		}
		for _, o := range want {
			if got := optionsOf(t, dir); !slices.Contains(got, o) {
				t.Errorf("%s: the mount has the options %v, without %s", name, got, o)
			}
		}
		if sub != "" && !slices.Contains(optionsOf(t, sub), "nosuid") {
			t.Errorf("%s: below it a mount has the options %v", name, optionsOf(t, sub))
		}
		check(t, h.Restrict(ctx, dir, []string{"relatime"}))
		if got := optionsOf(t, dir); slices.Contains(got, "noatime") || !slices.Contains(got, "nosuid") {
			t.Errorf("%s: with relatime the options are %v", name, got)
		}
		for path, words := range map[string]string{mkdir(t, tempDir(t), "none"): "not a mount point", "/none": "no such file"} {
			if err := h.Restrict(ctx, path, []string{"nosuid"}); err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%s: at %s: %v", name, path, err)
			}
		}
		if err := h.Restrict(ctx, dir, []string{"bad"}); err == nil {
			t.Errorf("%s: an unknown option is taken", name)
		}
	}
}

// TestSetMode checks that SetMode changes a directory, and refuses a symbolic link and a mount
// point.
func TestSetMode(t *testing.T) {
	h, ctx := newHost(t), t.Context()
	dir := mkdir(t, tempDir(t), "d")
	plain, over, link, file := mkdir(t, dir, "plain"), mkdir(t, dir, "over"), dir+"/link", dir+"/file"
	mountFS(t, "tmpfs", "t", over, 0, "mode=755")
	check(t, os.Symlink(plain, link))
	write(t, file, "x")
	check(t, h.SetMode(ctx, plain, 0o711))
	for path, want := range map[string]os.FileMode{plain: 0o711, over: 0o755, file: 0o600} {
		err := h.SetMode(ctx, path, 0o711)
		info, serr := os.Stat(path)
		check(t, serr)
		if (err == nil) != (path == plain) || path != file && info.Mode().Perm() != want {
			t.Errorf("%s: %v, mode %o", path, err, info.Mode().Perm())
		}
	}
	check(t, h.SetMode(ctx, plain, 0o700))
	if err := h.SetMode(ctx, link, 0o711); err == nil {
		t.Error("a symbolic link is followed")
	}
	if info, err := os.Stat(plain); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info, err)
	}
	if err := h.SetMode(ctx, dir+"/none", 0o711); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

func TestCredentials(t *testing.T) {
	uid, caps, err := credentials("Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nCapEff:\t0000000000000006\n")
	if uid != 4 || caps != 6 || err != nil || caps&enterCapabilities == 0 {
		t.Errorf("user %d, capabilities %x, %v", uid, caps, err)
	}
	for _, bad := range []string{"", "Uid:\t1\t2\t3\t4\n", "CapEff:\t0\n", "Uid:\t1\t2\t3\tx\nCapEff:\t0\n", "Uid:\t1\t2\t3\t4\nCapEff:\tx\n"} {
		if _, _, err := credentials(bad); err == nil {
			t.Errorf("%q makes sense", bad)
		}
	}
}
