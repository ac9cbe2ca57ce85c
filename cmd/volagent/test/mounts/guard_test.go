package mounts_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// isGuarded reports whether a directory has the immutable flag. It also checks that a write to the
// directory fails if and only if the flag is set.
func isGuarded(h harness.Recorded, dir string) bool {
	h.T.Helper()
	flags, err := harness.DirFlags(dir, nil)
	h.Must(err)
	err = os.WriteFile(filepath.Join(dir, "probe"), nil, 0o644)
	if err == nil {
		h.Must(os.Remove(filepath.Join(dir, "probe")))
	}
	if on := flags&harness.Immutable != 0; on != errors.Is(err, syscall.EPERM) {
		h.T.Errorf("%s has the flags %#x, and a write says %v", dir, flags, err)
	}
	return flags&harness.Immutable != 0
}

// mkdir creates a directory and returns its path.
func mkdir(h harness.Recorded, name string) string {
	h.T.Helper()
	dir := filepath.Join(h.Dir, name)
	h.Must(os.Mkdir(dir, 0o755))
	return dir
}

// TestGuard checks that an own directory refuses writes while no volume is mounted on it. The agent
// sets no guard on a directory that contains files, was already immutable, or was claimed with
// --at-writable. When the last volume that used a directory is deregistered, the agent restores the
// directory's earlier flags.
func TestGuard(t *testing.T) {
	h := harness.StartRecorded(t, "10s", func(c *csitest.Config) { c.Attach = false })
	for _, id := range []string{"data", "more"} {
		h.Register(id, "single-node-writer")
	}
	use := func(id, at string, more ...string) {
		t.Helper()
		h.Volctl(append([]string{"volume", "claim", id, "--alloc", "a", "--at", at}, more...)...)
		h.Must(os.WriteFile(filepath.Join(at, "file"), nil, 0o644))
		h.Volctl("volume", "detach", id)
	}
	at := mkdir(h, "at")
	for range 2 {
		use("data", at)
		if !isGuarded(h, at) {
			t.Error("it can be written to")
		}
	}
	for name, fill := range map[string]func(dir string){
		"full":     func(dir string) { h.Must(os.WriteFile(filepath.Join(dir, "x"), nil, 0o644)) },
		"writable": func(string) {},
	} {
		dir := mkdir(h, name)
		fill(dir)
		use("data", dir, map[string][]string{"writable": {"--at-writable"}}[name]...)
		if isGuarded(h, dir) {
			t.Errorf("%s: it is guarded", name)
		}
	}
	theirs := mkdir(h, "theirs")
	set := func(dir string, on uint32) {
		t.Helper()
		_, err := harness.DirFlags(dir, func(flags uint32) uint32 { return flags&^harness.Immutable | on })
		h.Must(err)
	}
	set(theirs, harness.Immutable)
	use("data", theirs)

	// The record must keep its list of guarded directories.
	h.Volctl("volume", "register", filepath.Join(h.Dir, "data.yaml"))
	use("more", at)
	h.Volctl("volume", "deregister", "data", "-y")
	if !isGuarded(h, theirs) {
		t.Error("what was immutable before is not any more")
	}
	if !isGuarded(h, at) {
		t.Error("another volume is mounted there too, and it can be written to")
	}
	h.Kill()
	h.Start("rec")
	h.Volctl("volume", "deregister", "more", "-y")
	if isGuarded(h, at) {
		t.Error("it stays immutable without a volume")
	}

	h.Register("data", "single-node-writer")
	use("data", at)
	h.Must(syscall.Mount("tmpfs", at, "tmpfs", 0, ""))
	out := h.Volctl("volume", "deregister", "data", "-y")
	if !strings.Contains(out, "something is mounted there") || !strings.Contains(out, "chattr -i "+at) {
		t.Errorf("it does not say what it leaves:\n%s", out)
	}
	h.Must(syscall.Unmount(at, 0))
	if !isGuarded(h, at) {
		t.Error("it was cleared, and the answer said not")
	}
}

// TestGuardAfterCrash checks that the agent stores the path of a directory before it guards the
// directory. If the agent dies between these steps, no directory may stay guarded without a record.
func TestGuardAfterCrash(t *testing.T) {
	h := harness.StartRecorded(t, "10s", func(c *csitest.Config) { c.Attach = false })
	for _, id := range []string{"data", "more"} {
		h.Register(id, "single-node-writer")
	}
	at, other := mkdir(h, "at"), mkdir(h, "other")
	h.AddFaults(csitest.Fault{Method: csitest.NodePublish, Hang: true, Times: -1})
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--at", at, "--no-wait")
	h.Volctl("volume", "claim", "more", "--alloc", "a", "--at", other, "--no-wait")
	h.Await("both publishes", func() bool { return h.Calls(0).Count(csitest.NodePublish) >= 2 })
	h.Kill()
	if isGuarded(h, at) || isGuarded(h, other) {
		t.Error("it is guarded before the mount")
	}
	h.Must(h.Config.Faults().Clear())
	h.Start("rec")
	for _, id := range []string{"data", "more"} {
		h.Volctl("wait", "--volume", id, "--for", "mounted", "--timeout", "60s")
	}
	h.Kill()
	h.Start("rec")
	h.Volctl("volume", "detach", "data")
	h.Volctl("volume", "detach", "more")
	if !isGuarded(h, at) || !isGuarded(h, other) {
		t.Error("it can be written to")
	}
	for id, dir := range map[string]string{"data": at, "more": other} {
		h.AwaitFree(id) // a publish from before the crash may still take effect
		h.Volctl("volume", "deregister", id, "-y")
		if isGuarded(h, dir) {
			t.Errorf("%s stays immutable", dir)
		}
	}
}

// TestGuardRestored checks that a backup contains the guarded directories, even if their volume has
// no claim.
func TestGuardRestored(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", func(c *csitest.Config) { c.Attach = false })
	t.Cleanup(h.UnguardAll)
	h.Register("data", "single-node-writer")
	at := mkdir(h, "at")
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--at", at)
	h.Volctl("volume", "detach", "data")
	h.AwaitFree("data")
	file := harness.Backup(h.Host)
	harness.LoseState(h.Host)
	h.Start("rec")
	harness.Restore(h.Host, 0, file)
	h.Volctl("volume", "deregister", "data", "-y")
	if isGuarded(h, at) {
		t.Error("it stays immutable without a volume")
	}
}

// TestDoctorGuards checks that doctor finds a guarded directory that neither a claim nor fstab
// names. The option --fix must make this directory writable. It must not change a directory that a
// claim or fstab names, or on which a file system is mounted.
func TestDoctorGuards(t *testing.T) {
	t.Parallel()
	h := harness.StartWithFstab(t)
	t.Cleanup(h.UnguardAll)
	for _, id := range []string{"data", "more"} {
		h.Register(id, "single-node-multi-writer")
	}
	stale, named, under := mkdir(h, "stale"), mkdir(h, "named"), mkdir(h, "under")
	for _, id := range []string{"data", "more"} {
		for _, at := range []string{stale, named, under} {
			h.Volctl("volume", "claim", id, "--alloc", "a", "--at", at)
			expectNone(harness.Doctor(h.Host), "guard-stale:"+at)
			h.Volctl("volume", "detach", id)
		}
	}
	h.Must(os.WriteFile(filepath.Join(h.Dir, "fstab"), []byte("data "+named+" csi _netdev,nofail\n"), 0o644))
	h.Must(syscall.Mount("tmpfs", under, "tmpfs", 0, "size=1m"))
	d := harness.Doctor(h.Host)
	if f := d.Finding("guard-stale:" + stale); f.Fix == "" || f.Do != "chattr -i "+stale || f.Severity != "note" {
		t.Errorf("%+v", f)
	}
	expectNone(d, "guard-stale:"+named, "guard-stale:"+under)
	if fixed := harness.FixFindings(h.Host, "guard-stale:"+named, "guard-stale:"+under); fixed[0].Outcome != api.FixGone || fixed[1].Outcome != api.FixGone {
		t.Errorf("%+v", fixed)
	}
	expectNone(harness.Doctor(h.Host, "--fix", "-y"), "guard-stale:"+stale, "guard-stale:"+named, "guard-stale:"+under)
	h.Must(syscall.Unmount(under, 0))
	if isGuarded(h, stale) || !isGuarded(h, named) || !isGuarded(h, under) {
		t.Errorf("refuse writes: %t, %t, %t", isGuarded(h, stale), isGuarded(h, named), isGuarded(h, under))
	}
	h.Kill()
	h.Start("rec")
	expectNone(harness.Doctor(h.Host), "guard-stale:"+stale)
	harness.Doctor(h.Host).Finding("guard-stale:" + under)

	// The record no longer names this directory. If another program now makes the directory
	// immutable, the agent must keep the flag.
	_, err := harness.DirFlags(stale, func(flags uint32) uint32 { return flags | harness.Immutable })
	h.Must(err)
	expectNone(harness.Doctor(h.Host, "--fix", "-y"), "guard-stale:"+stale, "guard-stale:"+under)
	if !isGuarded(h, stale) || isGuarded(h, under) {
		t.Errorf("refuse writes: %t, %t", isGuarded(h, stale), isGuarded(h, under))
	}

	// The next mount must guard the directory again.
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--at", under)
	h.Volctl("volume", "detach", "data")
	if !isGuarded(h, under) {
		t.Error("it can be written to")
	}
}

// expectNone asserts that doctor reports none of the given findings.
func expectNone(d harness.DoctorReport, ids ...string) {
	d.T.Helper()
	for _, id := range ids {
		if slices.Contains(d.IDs(), id) {
			d.T.Errorf("found %s", id)
		}
	}
}

// TestGuardMoved renames the parent of a guarded directory. When the volume is deregistered, the
// agent must find the renamed directory and remove its guard. A new directory at the old path gets
// its own guard.
func TestGuardMoved(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", func(c *csitest.Config) { c.Attach = false })
	t.Cleanup(h.UnguardAll)
	h.Register("data", "single-node-writer")
	mkdir(h, "above")
	at := mkdir(h, "above/at")
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--at", at)
	h.Volctl("volume", "detach", "data")
	moved := filepath.Join(h.Dir, "moved")
	h.Must(os.Rename(filepath.Join(h.Dir, "above"), moved))
	mkdir(h, "above")
	mkdir(h, "above/at")
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--at", at)
	h.Volctl("volume", "detach", "data")
	h.Kill()
	h.Start("rec")
	if !isGuarded(h, at) || !isGuarded(h, moved+"/at") {
		t.Errorf("refuse writes: %t, %t", isGuarded(h, at), isGuarded(h, moved+"/at"))
	}
	h.Volctl("volume", "deregister", "data", "-y")
	if isGuarded(h, at) || isGuarded(h, moved+"/at") {
		t.Errorf("without a volume they refuse writes: %t, %t", isGuarded(h, at), isGuarded(h, moved+"/at"))
	}
}

// TestGuardForced checks a volume that is still mounted after a forced deregister. The volume's own
// directory must stay immutable until the agent has unmounted the volume, even if the agent
// restarts in between.
func TestGuardForced(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", func(c *csitest.Config) { c.Attach = false })
	t.Cleanup(h.UnguardAll)
	h.Register("data", "single-node-writer")
	at := mkdir(h, "at")
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--at", at)
	h.AddFaults(csitest.Fault{Method: csitest.NodeUnpublish, Code: codes.Internal, Times: -1})
	h.Volctl("volume", "detach", "data", "--no-wait")
	h.Await("a failed unpublish", func() bool { return h.Calls(0).Count(csitest.NodeUnpublish) > 0 })
	h.Volctl("volume", "deregister", "data", "-force", "-y")
	h.Kill()
	h.Start("rec")
	h.Must(h.Config.Faults().Clear())
	h.Await("the directory to be writable", func() bool { return h.Mounts() == "" && !isGuarded(h, at) })
}
