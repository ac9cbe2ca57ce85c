package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sharedDir returns a directory that is the root of a shared mount, like the directory of all
// volume mounts on a host.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir := mkdir(t, tempDir(t), "root")
	bindAt(t, dir, dir)
	check(t, unix.Mount("", dir, "", unix.MS_SHARED, ""))
	return dir
}

// apart starts a process in a new mount namespace. Before the process starts, the script runs in
// the new namespace.
func apart(t *testing.T, propagation, script string) (pid int) {
	t.Helper()
	exe, err := os.Executable()
	check(t, err)
	pid, _ = start(t, "stay", func(cmd *exec.Cmd) {
		unshare, err := exec.LookPath("unshare")
		check(t, err)
		cmd.Path = unshare
		cmd.Args = []string{"unshare", "-m", "--propagation", propagation, "sh", "-ec", script + "\nexec " + exe}
	})
	return pid
}

// canaryIn reports whether a canary is mounted anywhere in the namespace of a process.
func canaryIn(t *testing.T, pid int) bool {
	t.Helper()
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	check(t, err)
	return strings.Contains(string(table), canarySource)
}

// expectNoCanary fails the test if a canary or its directory remains after Sharing.
func expectNoCanary(t *testing.T, dir string, pid int) {
	t.Helper()
	if canaryIn(t, os.Getpid()) || canaryIn(t, pid) {
		t.Error("a canary is left mounted")
	}
	if _, err := os.Lstat(filepath.Join(dir, CanaryName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
}

func TestSharing(t *testing.T) {
	cover := func(what string) func(string) string {
		return func(dir string) string { return "mount -t tmpfs other " + fmt.Sprintf(what, dir) }
	}
	for name, tt := range map[string]struct {
		propagation string
		script      func(dir string) string // runs in the namespace of the process
		then        func(t *testing.T, dir string)
		want        Apart
	}{
		"shared":  {propagation: "shared"},
		"slave":   {propagation: "slave", want: Apart{NotOut: true}},
		"private": {propagation: "private", want: Apart{NotIn: true, NotOut: true}},
		"host is slave": {
			propagation: "shared", want: Apart{NotIn: true},
			then: func(t *testing.T, dir string) { check(t, unix.Mount("", dir, "", unix.MS_SLAVE, "")) },
		},
		"another directory": {propagation: "private", script: cover("%s"), want: Apart{OtherPath: true}},
		"no directory":      {propagation: "private", script: cover("%s/.."), want: Apart{NoPath: true}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := sharedDir(t)
			inner := mkdir(t, dir, "a/b")
			script := ":"
			if tt.script != nil {
				script = tt.script(inner)
			}
			pid := apart(t, tt.propagation, script)
			if tt.then != nil {
				tt.then(t, dir)
			}
			h := newHost(t)
			for range 2 { // the second iteration acts like a restarted agent
				if got, err := h.Sharing(context.Background(), pid, inner); got != tt.want || err != nil {
					t.Errorf("%+v, %v, want %+v", got, err, tt.want)
				}
				expectNoCanary(t, inner, pid)
			}
		})
	}
}

// TestSharingTouchesNothing checks that Sharing mounts nothing if no test is needed. Sharing must
// change neither existing mounts nor the namespace of this program.
func TestSharingTouchesNothing(t *testing.T) {
	dir := sharedDir(t)
	h, ctx := newHost(t), context.Background()
	pid, _ := start(t, "stay", nil)
	if got, err := h.Sharing(ctx, pid, dir+"/none"); got != (Apart{}) || err != nil {
		t.Errorf("in our namespace: %+v, %v", got, err)
	}
	if _, err := os.Lstat(dir + "/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory was made for nothing: %v", err)
	}
	rooted, _ := start(t, "chroot "+mkdir(t, dir, "jail"), nil)
	if got, err := h.Sharing(ctx, rooted, mkdir(t, dir, "m")); got != (Apart{NoPath: true}) || err != nil {
		t.Errorf("in our namespace with another root: %+v, %v", got, err)
	}

	live := mkdir(t, dir, "plugin/staging")
	mountFS(t, "tmpfs", "live", live, 0, "")
	before, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	other := apart(t, "shared", ":")
	for range 20 {
		if got, err := h.Sharing(ctx, other, dir+"/plugin"); got != (Apart{}) || err != nil {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	after, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	if string(before) != string(after) {
		t.Errorf("the mount table was\n%s\nand is\n%s", before, after)
	}
	await(t, "all threads to be at home", func() bool {
		home := true
		check(t, h.addSpaces(os.Getpid(), func(space, _ string) { home = home && space == h.ownSpace() }))
		return home
	})
}

// TestSharingAfterAKill checks that Sharing removes the canaries of a killed agent, both on this
// host and in the namespace of a process. It must keep other mounts.
func TestSharingAfterAKill(t *testing.T) {
	dir := sharedDir(t)
	at := mkdir(t, dir, CanaryName)
	pid := apart(t, "private", "mount -t tmpfs "+canarySource+" "+at)
	for range 2 {
		_, err := mountCanary(at)
		check(t, err)
	}
	h, ctx := newHost(t), context.Background()
	want := Apart{NotIn: true, NotOut: true}
	if got, err := h.Sharing(ctx, pid, dir); got != want || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	expectNoCanary(t, dir, pid)

	_, err := mountCanary(mkdir(t, at))
	check(t, err)
	check(t, h.ClearCanary(ctx, dir))
	expectNoCanary(t, dir, pid)
	check(t, h.ClearCanary(ctx, dir))

	mountFS(t, "tmpfs", "precious", mkdir(t, at), 0, "")
	for _, err := range []error{h.ClearCanary(ctx, dir), func() error { _, err := h.Sharing(ctx, pid, dir); return err }()} {
		if err == nil || !strings.Contains(err.Error(), "precious") {
			t.Errorf("with something else there: %v", err)
		}
	}
	if s := see(t, at); s.Identity.FSType != "tmpfs" {
		t.Errorf("what was there: %+v", s)
	}
}

func TestSharingCannotTell(t *testing.T) {
	h, ctx := boundedHost(t, 200*time.Millisecond), context.Background()
	dir := sharedDir(t)
	if got, err := h.Sharing(ctx, 1<<22+1, dir); got != (Apart{}) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no process: %+v, %v", got, err)
	}
	pid := apart(t, "shared", ":")
	hung := mkdir(t, tempDir(t), "m")
	f := serveFuse(t, hung, false)
	f.sleep()
	begin := time.Now()
	var e *HungError
	if _, err := h.Sharing(ctx, pid, hung+"/plugin"); !errors.As(err, &e) || time.Since(begin) > 20*time.Second {
		t.Errorf("hung: %v after %v", err, time.Since(begin))
	}
	f.wake()
	await(t, "the call to return", func() bool { return h.gate.outstanding() == 0 })
}

func TestSameNetwork(t *testing.T) {
	h := newHost(t)
	for flags, want := range map[uintptr]bool{0: true, unix.CLONE_NEWNET: false, unix.CLONE_NEWNS: true} {
		pid, _ := start(t, "stay", func(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: flags} })
		if same, err := h.SameNetwork(pid); same != want || err != nil {
			t.Errorf("unshared %#x: %v, %v", flags, same, err)
		}
	}
	if _, err := h.SameNetwork(1<<22 + 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no process: %v", err)
	}
}

// BenchmarkSharing measures how long Sharing delays the start of a plugin in another namespace.
func BenchmarkSharing(b *testing.B) {
	dir := b.TempDir()
	bindAt(b, dir, dir)
	b.Cleanup(func() { check(b, unix.Unmount(dir, unix.MNT_DETACH)) })
	check(b, unix.Mount("", dir, "", unix.MS_SHARED, ""))
	cmd := exec.Command("unshare", "-m", "--propagation", "shared", "sleep", "1000")
	check(b, cmd.Start())
	b.Cleanup(func() { check(b, cmd.Process.Kill()); _ = cmd.Wait() })
	h := newHost(b)
	await(b, "its namespace", func() bool {
		space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", cmd.Process.Pid))
		return err == nil && space != h.ownSpace()
	})
	for b.Loop() {
		if got, err := h.Sharing(context.Background(), cmd.Process.Pid, dir); got != (Apart{}) || err != nil {
			b.Fatalf("%+v, %v", got, err)
		}
	}
}
