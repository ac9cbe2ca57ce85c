package main_test

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
	"github.com/volagent/volagent/volmgr/csitest"
)

// guarded reports whether a directory has the immutable flag. It also checks that a write to the
// directory fails only with this flag.
func (h recorded) guarded(dir string) bool {
	h.t.Helper()
	flags, err := dirFlags(dir, nil)
	h.must(err)
	err = os.WriteFile(filepath.Join(dir, "probe"), nil, 0o644)
	if err == nil {
		h.must(os.Remove(filepath.Join(dir, "probe")))
	}
	if on := flags&immutable != 0; on != errors.Is(err, syscall.EPERM) {
		h.t.Errorf("%s has the flags %#x, and a write says %v", dir, flags, err)
	}
	return flags&immutable != 0
}

// at creates a directory and returns its path.
func (h recorded) at(name string) string {
	h.t.Helper()
	dir := filepath.Join(h.dir, name)
	h.must(os.Mkdir(dir, 0o755))
	return dir
}

// TestGuard checks that an own directory refuses writes while no volume is mounted on it. The agent
// does not guard a directory that contains files, was immutable before, or was claimed with
// --at-writable. The deregister of the last volume that used a directory restores the directory's
// former flags.
func TestGuard(t *testing.T) {
	h := newRecorded(t, "10s", func(c *csitest.Config) { c.Attach = false })
	for _, id := range []string{"data", "more"} {
		h.register(id, "single-node-writer")
	}
	use := func(id, at string, more ...string) {
		t.Helper()
		h.volctl(append([]string{"volume", "claim", id, "--alloc", "a", "--at", at}, more...)...)
		h.must(os.WriteFile(filepath.Join(at, "file"), nil, 0o644))
		h.volctl("volume", "detach", id)
	}
	at := h.at("at")
	for range 2 {
		use("data", at)
		if !h.guarded(at) {
			t.Error("it can be written to")
		}
	}
	for name, fill := range map[string]func(dir string){
		"full":     func(dir string) { h.must(os.WriteFile(filepath.Join(dir, "x"), nil, 0o644)) },
		"writable": func(string) {},
	} {
		dir := h.at(name)
		fill(dir)
		use("data", dir, map[string][]string{"writable": {"--at-writable"}}[name]...)
		if h.guarded(dir) {
			t.Errorf("%s: it is guarded", name)
		}
	}
	theirs := h.at("theirs")
	set := func(dir string, on uint32) {
		t.Helper()
		_, err := dirFlags(dir, func(flags uint32) uint32 { return flags&^immutable | on })
		h.must(err)
	}
	set(theirs, immutable)
	use("data", theirs)

	h.volctl("volume", "register", filepath.Join(h.dir, "data.yaml")) // this keeps the record's list of guarded directories
	use("more", at)
	h.volctl("volume", "deregister", "data", "-y")
	if !h.guarded(theirs) {
		t.Error("what was immutable before is not any more")
	}
	if !h.guarded(at) {
		t.Error("another volume is mounted there too, and it can be written to")
	}
	h.kill()
	h.start("rec")
	h.volctl("volume", "deregister", "more", "-y")
	if h.guarded(at) {
		t.Error("it stays immutable without a volume")
	}

	h.register("data", "single-node-writer")
	use("data", at)
	h.must(syscall.Mount("tmpfs", at, "tmpfs", 0, ""))
	out := h.volctl("volume", "deregister", "data", "-y")
	if !strings.Contains(out, "something is mounted there") || !strings.Contains(out, "chattr -i "+at) {
		t.Errorf("it does not say what it leaves:\n%s", out)
	}
	h.must(syscall.Unmount(at, 0))
	if !h.guarded(at) {
		t.Error("it was cleared, and the answer said not")
	}
}

// TestGuardAfterCrash checks that the agent stores the name of a directory before it guards the
// directory. Therefore an agent that dies between these steps leaves no guard without a record.
func TestGuardAfterCrash(t *testing.T) {
	h := newRecorded(t, "10s", func(c *csitest.Config) { c.Attach = false })
	for _, id := range []string{"data", "more"} {
		h.register(id, "single-node-writer")
	}
	at, other := h.at("at"), h.at("other")
	h.fault(csitest.Fault{Method: csitest.NodePublish, Hang: true, Times: -1})
	h.volctl("volume", "claim", "data", "--alloc", "a", "--at", at, "--no-wait")
	h.volctl("volume", "claim", "more", "--alloc", "a", "--at", other, "--no-wait")
	h.await("both publishes", func() bool { return h.calls(0).Count(csitest.NodePublish) >= 2 })
	h.kill()
	if h.guarded(at) || h.guarded(other) {
		t.Error("it is guarded before the mount")
	}
	h.must(h.cfg.Faults().Clear())
	h.start("rec")
	for _, id := range []string{"data", "more"} {
		h.volctl("wait", "--volume", id, "--for", "mounted", "--timeout", "60s")
	}
	h.kill()
	h.start("rec")
	h.volctl("volume", "detach", "data")
	h.volctl("volume", "detach", "more")
	if !h.guarded(at) || !h.guarded(other) {
		t.Error("it can be written to")
	}
	for id, dir := range map[string]string{"data": at, "more": other} {
		h.awaitFree(id) // a publish that the agent gave up may still take effect
		h.volctl("volume", "deregister", id, "-y")
		if h.guarded(dir) {
			t.Errorf("%s stays immutable", dir)
		}
	}
}

// TestGuardRestored checks that a backup contains the guarded directories, even those of an
// unclaimed volume.
func TestGuardRestored(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", func(c *csitest.Config) { c.Attach = false })
	t.Cleanup(h.unguardAll)
	h.register("data", "single-node-writer")
	at := h.at("at")
	h.volctl("volume", "claim", "data", "--alloc", "a", "--at", at)
	h.volctl("volume", "detach", "data")
	h.awaitFree("data")
	file := h.backup()
	h.lose()
	h.start("rec")
	h.restored(0, file)
	h.volctl("volume", "deregister", "data", "-y")
	if h.guarded(at) {
		t.Error("it stays immutable without a volume")
	}
}

// TestDoctorGuards checks that doctor finds a guarded directory that neither a claim nor fstab
// names. The option --fix makes this directory writable again. It does not change a directory that
// a claim or fstab names, or on which a file system is mounted.
func TestDoctorGuards(t *testing.T) {
	t.Parallel()
	h := newPatient(t)
	t.Cleanup(h.unguardAll)
	for _, id := range []string{"data", "more"} {
		h.register(id, "single-node-multi-writer")
	}
	stale, named, under := h.at("stale"), h.at("named"), h.at("under")
	for _, id := range []string{"data", "more"} {
		for _, at := range []string{stale, named, under} {
			h.volctl("volume", "claim", id, "--alloc", "a", "--at", at)
			h.doctor().none("guard-stale:" + at)
			h.volctl("volume", "detach", id)
		}
	}
	h.must(os.WriteFile(filepath.Join(h.dir, "fstab"), []byte("data "+named+" csi _netdev,nofail\n"), 0o644))
	h.must(syscall.Mount("tmpfs", under, "tmpfs", 0, "size=1m"))
	d := h.doctor()
	if f := d.finding("guard-stale:" + stale); f.Fix == "" || f.Do != "chattr -i "+stale || f.Severity != "note" {
		t.Errorf("%+v", f)
	}
	d.none("guard-stale:"+named, "guard-stale:"+under)
	if fixed := h.fix("guard-stale:"+named, "guard-stale:"+under); fixed[0].Outcome != api.FixGone || fixed[1].Outcome != api.FixGone {
		t.Errorf("%+v", fixed)
	}
	h.doctor("--fix", "-y").none("guard-stale:"+stale, "guard-stale:"+named, "guard-stale:"+under)
	h.must(syscall.Unmount(under, 0))
	if h.guarded(stale) || !h.guarded(named) || !h.guarded(under) {
		t.Errorf("refuse writes: %t, %t, %t", h.guarded(stale), h.guarded(named), h.guarded(under))
	}
	h.kill()
	h.start("rec")
	h.doctor().none("guard-stale:" + stale)
	h.doctor().finding("guard-stale:" + under)

	// The record no longer names this directory. If another program makes the directory immutable
	// now, the agent must not change the flag.
	_, err := dirFlags(stale, func(flags uint32) uint32 { return flags | immutable })
	h.must(err)
	h.doctor("--fix", "-y").none("guard-stale:"+stale, "guard-stale:"+under)
	if !h.guarded(stale) || h.guarded(under) {
		t.Errorf("refuse writes: %t, %t", h.guarded(stale), h.guarded(under))
	}

	// The next mount guards the directory again.
	h.volctl("volume", "claim", "data", "--alloc", "a", "--at", under)
	h.volctl("volume", "detach", "data")
	if !h.guarded(under) {
		t.Error("it can be written to")
	}
}

// none asserts that doctor has none of the given findings.
func (d examined) none(ids ...string) {
	d.t.Helper()
	for _, id := range ids {
		if slices.Contains(d.ids(), id) {
			d.t.Errorf("found %s", id)
		}
	}
}

// TestGuardMoved renames the parent of a guarded directory. When the volume is deregistered, the
// agent must find the renamed directory and remove its guard. A new directory at the old path gets
// its own guard.
func TestGuardMoved(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", func(c *csitest.Config) { c.Attach = false })
	t.Cleanup(h.unguardAll)
	h.register("data", "single-node-writer")
	h.at("above")
	at := h.at("above/at")
	h.volctl("volume", "claim", "data", "--alloc", "a", "--at", at)
	h.volctl("volume", "detach", "data")
	moved := filepath.Join(h.dir, "moved")
	h.must(os.Rename(filepath.Join(h.dir, "above"), moved))
	h.at("above")
	h.at("above/at")
	h.volctl("volume", "claim", "data", "--alloc", "a", "--at", at)
	h.volctl("volume", "detach", "data")
	h.kill()
	h.start("rec")
	if !h.guarded(at) || !h.guarded(moved+"/at") {
		t.Errorf("refuse writes: %t, %t", h.guarded(at), h.guarded(moved+"/at"))
	}
	h.volctl("volume", "deregister", "data", "-y")
	if h.guarded(at) || h.guarded(moved+"/at") {
		t.Errorf("without a volume they refuse writes: %t, %t", h.guarded(at), h.guarded(moved+"/at"))
	}
}

// TestGuardForced checks a volume that stays mounted after a forced deregister. Its own directory
// stays immutable until the agent has unmounted the volume, even if the agent restarts meanwhile.
func TestGuardForced(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", func(c *csitest.Config) { c.Attach = false })
	t.Cleanup(h.unguardAll)
	h.register("data", "single-node-writer")
	at := h.at("at")
	h.volctl("volume", "claim", "data", "--alloc", "a", "--at", at)
	h.fault(csitest.Fault{Method: csitest.NodeUnpublish, Code: codes.Internal, Times: -1})
	h.volctl("volume", "detach", "data", "--no-wait")
	h.await("a failed unpublish", func() bool { return h.calls(0).Count(csitest.NodeUnpublish) > 0 })
	h.volctl("volume", "deregister", "data", "-force", "-y")
	h.kill()
	h.start("rec")
	h.must(h.cfg.Faults().Clear())
	h.await("the directory to be writable", func() bool { return h.mounts() == "" && !h.guarded(at) })
}
