package mount

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// contain bind-mounts source at target below a new root directory, and makes this the root
// directory of the process.
func contain(source, target string) error {
	root, err := os.MkdirTemp("", "root")
	if err != nil {
		return err
	}
	return errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("root", root, "tmpfs", 0, ""),
		os.MkdirAll(root+target, 0o755), os.Mkdir(root+"/old", 0o755), unix.Mount(source, root+target, "", unix.MS_BIND, ""),
		unix.PivotRoot(root, root+"/old"), os.Chdir("/"), os.Remove("/old"+root), unix.Unmount("/old", unix.MNT_DETACH))
}

// TestElsewhere checks that Elsewhere counts a mount in a container, and does not count a copy of
// the host's mount table.
func TestElsewhere(t *testing.T) {
	dir := tempDir(t)
	at, own := mkdir(t, dir, "m"), mkdir(t, dir, "own")
	mountFS(t, "tmpfs", "t", at, 0, "")
	bindAt(t, at, own)
	mkdir(t, at, "sub")
	unshared := func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS} }
	entries, err := newHost(t).Under(at)
	check(t, err)
	id := entries[0].Identity
	asked := func() []string {
		t.Helper()
		users, err := newHost(t).Elsewhere(t.Context(), id, []string{at})
		check(t, err)
		return users
	}
	start(t, "stay", unshared) // a service with PrivateTmp= has such a mount namespace
	if got := asked(); len(got) > 0 {
		t.Errorf("a copy of the table: %q", got)
	}
	for what, where := range map[string]string{
		"bind " + at + " " + mkdir(t, dir, "other"):         dir + "/other",
		"contain " + at + " /data":                          "/data",
		"contain " + at + "/sub /data":                      "/data", // this mount shows a part of the volume
		"contain " + at + " " + own:                         own,     // this mount has the same path as on the host
		"bind " + at + "/sub " + mkdir(t, dir, "elsewhere"): dir + "/elsewhere",
	} {
		_, stop := start(t, what, unshared)
		if got := asked(); len(got) != 1 || !strings.Contains(got[0], `has a mount at "`+where+`"`) {
			t.Errorf("%s: %q", what, got)
		}
		stop()
	}
	_, stop := start(t, "contain / /host", unshared) // the bind of / is not recursive, so it contains no other mount
	if got := asked(); len(got) > 0 {
		t.Errorf("another file system: %q", got)
	}
	stop()
	root := mkdir(t, dir, "overlay2/"+strings.Repeat("0123456789abcdef", 4)+"/merged/data")
	bindAt(t, at, root) // "docker cp" makes such a mount
	if got := asked(); len(got) != 1 || !strings.Contains(got[0], root) {
		t.Errorf("in the files of a container: %q", got)
	}
	if users, err := newHost(t).Elsewhere(t.Context(), id, []string{at, root}); err != nil || len(users) > 0 {
		t.Errorf("at a path of our own: %q, %v", users, err)
	}
	check(t, unix.Unmount(root, 0))
	other := id
	other.Boot = "an earlier one"
	if users, err := newHost(t).Elsewhere(t.Context(), other, nil); err != nil || len(users) > 0 {
		t.Errorf("of an earlier boot: %q, %v", users, err)
	}
	// Elsewhere fails if it cannot inspect a process.
	h := newHost(t)
	h.procfs = procfs(t.TempDir())
	if _, err := h.Elsewhere(t.Context(), id, nil); err == nil {
		t.Error("nothing was read, and that is an answer")
	}
}
