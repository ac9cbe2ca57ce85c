package main_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/volmgr/csitest"
)

// The tests in this file check that the agent keeps its promises in situations in which other
// software is known to damage data or to disturb its users.

// daemons returns the FUSE daemons that serve this host's mounts.
func (h recorded) daemons() []int { return h.started("CSITEST_FUSE_DAEMON=") }

// signalDaemons sends a signal to all FUSE daemons of this host.
func (h recorded) signalDaemons(sig syscall.Signal) {
	h.t.Helper()
	pids := h.daemons()
	if len(pids) == 0 {
		h.t.Fatal("no FUSE daemon runs")
	}
	for _, pid := range pids {
		h.must(syscall.Kill(pid, sig))
	}
}

// shows waits until the status of volume "data" contains the given words.
func (h recorded) shows(words string) {
	h.t.Helper()
	h.await("the status to say "+words, func() bool { return strings.Contains(h.volctl("volume", "status", "data"), words) })
}

// TestDeadMount kills the FUSE daemon of a volume with two claims. The agent unmounts all mounts of
// the volume, and then mounts them again at the paths of both claims.
func TestDeadMount(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-multi-writer")
	h.fault(csitest.Fault{Method: st, Twist: csitest.Served})
	paths := []string{h.volctl("volume", "claim", "data", "--alloc", "a"), h.volctl("volume", "claim", "data", "--alloc", "b")}
	claims, mark := h.volctl("claim", "list", "-o", "json"), h.mark()
	h.signalDaemons(syscall.SIGKILL)
	h.await("the death", func() bool { _, err := os.ReadDir(paths[0]); return errors.Is(err, syscall.ENOTCONN) })
	h.await("the repair", func() bool {
		return strings.Contains(h.volctl("volume", "status", "data"), "mounted, writable") && h.calls(mark).Count(pub) == 2
	})
	h.expect(mark, unpub, unpub, unst, st, pub, pub)
	if got := h.volctl("claim", "list", "-o", "json"); got != claims {
		t.Errorf("the claims changed:\n%s\nwere:\n%s", got, claims)
	}
	for _, path := range paths {
		h.must(os.WriteFile(filepath.Join(path, filepath.Base(filepath.Dir(path))), nil, 0o644))
	}
	h.volctl("volume", "detach", "data", "--all")
	h.over("data")
}

// TestForeignMount replaces the agent's mount by another file system. The agent recognizes the
// other device, and neither uses nor changes this mount, even after a restart and a new claim. The
// status reports the mount. Once the mount is gone, the agent mounts the claim's volume again.
func TestForeignMount(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"target", "staging"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			h := newRecorded(t, "10s", nil)
			h.register("data", "single-node-writer")
			path := h.volctl("volume", "claim", "data", "--alloc", "a")
			at := path
			if where == "staging" {
				at = h.stagingPath("data")
			}
			planted, mark := filepath.Join(at, "planted"), h.mark()
			h.frozen(func() {
				unmount(t, path)
				if at != path {
					unmount(t, at)
				}
				h.must(syscall.Mount("tmpfs", at, "tmpfs", 0, "size=1m"))
				h.must(os.WriteFile(planted, []byte("theirs"), 0o644))
			})
			h.shows("not made by this")
			h.kill()
			h.start("rec")
			h.shows("not made by this")
			if r := h.try("volume", "claim", "data", "--alloc", "a", "--timeout", "300ms"); r.code == 0 || r.out != "" {
				t.Errorf("a claim gave out what is not the volume: exit %d, %s", r.code, r.out)
			}
			h.expect(mark)
			if raw, err := os.ReadFile(planted); string(raw) != "theirs" {
				t.Errorf("the other's file: %q, %v", raw, err)
			}
			unmount(t, at)
			h.await("the repair", func() bool { return strings.Contains(h.volctl("volume", "status", "data"), "mounted, writable") })
			h.must(os.WriteFile(filepath.Join(path, "file"), nil, 0o644))
			h.volctl("volume", "detach", "data", "a")
			h.over("data")
		})
	}
}

// TestHungStorage checks a mount that does not answer. The agent reports the mount and does not
// touch it. Every status command takes less than a second. Clients can claim and detach other
// volumes, and the agent can stop and start. If the mount answers again, the agent changes nothing.
// If the mount dies, the agent mounts the volume again.
func TestHungStorage(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	h.register("other", "single-node-writer")
	h.fault(csitest.Fault{Method: st, Twist: csitest.Served})
	h.volctl("volume", "claim", "data", "--alloc", "a")
	mounts, mark := h.mounts(), h.mark()
	h.signalDaemons(syscall.SIGSTOP)
	quick := func(args ...string) string {
		t.Helper()
		from := time.Now()
		out := h.volctl(args...)
		// The agent promises 1 s. The longer limit allows for a machine under load.
		if took := time.Since(from); took > 4*time.Second {
			t.Errorf("volctl %v took %s", args, took)
		}
		return out
	}
	if out := quick("volume", "status", "data"); !strings.Contains(out, "no answer since") {
		t.Errorf("the first status says\n%s", out)
	}
	quick("node", "status")
	quick("volume", "list")
	quick("volume", "claim", "other", "--alloc", "a")
	quick("volume", "detach", "other", "a")
	h.must(h.signal(syscall.SIGTERM))
	h.start("rec")
	if out := quick("volume", "status", "data"); !strings.Contains(out, "no answer since") {
		t.Errorf("the status after a restart says\n%s", out)
	}
	if calls := h.calls(mark).Of("ext/data"); len(calls) > 0 {
		t.Errorf("what hangs was not left alone:\n%s", calls)
	}
	h.signalDaemons(syscall.SIGCONT)
	h.shows("mounted, writable")
	if got := h.mounts(); got != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	h.signalDaemons(syscall.SIGSTOP)
	h.shows("no answer since")
	h.signalDaemons(syscall.SIGKILL)
	h.shows("mounted, writable")
	h.volctl("volume", "detach", "data", "a")
	h.over("data")
}

// TestHungPublish checks a publish that returns OK but whose mount never answers. The claim fails
// in time and prints no path. Other volumes are not affected. When the mount dies, the agent
// unmounts it.
func TestHungPublish(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "2s", nil)
	h.register("data", "single-node-writer")
	h.register("other", "single-node-writer")
	h.fault(csitest.Fault{Method: pub, Volume: "ext/data", Twist: csitest.Hung})
	r := h.try("volume", "claim", "data", "--alloc", "a", "--timeout", "1s")
	if r.code != 5 || r.out != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	h.volctl("volume", "claim", "other", "--alloc", "a")
	h.volctl("volume", "detach", "other")
	h.must(h.cfg.Faults().Clear()) // now the mount dies
	h.over("data")
	h.lives()
}

// TestPluginDown starts an agent whose plugin does not become ready. The claims stay mounted, and
// the status shows that the plugin is unavailable. The agent unmounts nothing, mounts nothing
// again, and does not disturb processes that use the volume.
func TestPluginDown(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	file := h.writer(h.volctl("volume", "claim", "data", "--alloc", "a"))
	claims, mounts, mark := h.volctl("claim", "list", "-o", "json"), h.mounts(), h.mark()
	pid := h.pluginPID("rec")
	h.kill()
	h.must(syscall.Kill(pid, syscall.SIGKILL))
	h.fault(csitest.Fault{Method: csitest.Probe, Code: codes.Unavailable, Times: -1})
	h.start()
	h.shows("mounted, writable, plugin unavailable")
	if out := h.volctl("volume", "claim", "data", "--alloc", "a"); out != filepath.Dir(file) {
		t.Errorf("the same claim again says %q", out)
	}
	if got := h.mounts(); got != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	was := size(file)
	h.await("the writer to go on", func() bool { return size(file) > was })
	h.must(h.cfg.Faults().Clear())
	h.volctl("wait", "--plugin", "rec", "--timeout", "60s")
	h.await("the plugin to be available", func() bool { return !strings.Contains(h.volctl("volume", "status", "data"), "unavailable") })
	if got := h.volctl("claim", "list", "-o", "json"); got != claims {
		t.Errorf("the claims changed:\n%s\nwere:\n%s", got, claims)
	}
	h.expect(mark)
}

// TestHolderIsNamed checks that the error of a refused claim names the holder of the volume, the
// age of the holder's claim, and the command that frees the volume. This command must work.
func TestHolderIsNamed(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	h.volctl("volume", "claim", "data", "--alloc", "first one")
	r := h.try("volume", "claim", "data", "--alloc", "second")
	if r.code != 4 || !strings.Contains(r.err, `"first one" (mounted, for `) {
		t.Errorf("exit %d, %s", r.code, r.err)
	}
	_, hint, _ := strings.Cut(r.err, "hint: ")
	cmd := exec.Command("sh", "-c", hint)
	cmd.Env = h.env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the hint %q: %v\n%s", hint, err, out)
	}
	h.volctl("volume", "claim", "data", "--alloc", "second")
	h.volctl("volume", "detach", "data")
	h.over("data")
}

// TestPlanted checks that a detach does not remove foreign files and mounts in the agent's
// directories. The foreign files lie under a target and a staging path, and a foreign mount lies
// beside them.
func TestPlanted(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	target := h.volctl("volume", "claim", "data", "--alloc", "a")
	staging := h.stagingPath("data")
	h.must(os.WriteFile(filepath.Join(target, "file"), []byte("kept"), 0o644))
	// Unmount the volume for a moment, and write files to the directories under the mounts.
	planted := map[string]string{
		filepath.Join(target, "under"): "under the target", filepath.Join(staging, "under"): "under the staging path",
		filepath.Join(filepath.Dir(target), "beside"): "beside the target", filepath.Join(h.dir, "d/csi/rec/staging/beside/file"): "another's mount",
	}
	beside := filepath.Join(h.dir, "d/csi/rec/staging/beside")
	h.must(os.Mkdir(beside, 0o755))
	h.must(syscall.Mount("tmpfs", beside, "tmpfs", 0, "size=1m"))
	h.frozen(func() {
		unmount(t, target)
		unmount(t, staging)
		for path, words := range planted {
			h.must(os.WriteFile(path, []byte(words), 0o640))
		}
	})
	h.await("the repair", func() bool { return strings.Contains(h.volctl("volume", "status", "data"), "mounted, writable") })
	h.volctl("volume", "detach", "data", "a")
	h.kill()
	h.start("rec")
	h.volctl("volume", "deregister", "data")
	for path, words := range planted {
		info, err := os.Stat(path)
		if err != nil {
			t.Errorf("a planted file: %v", err)
			continue
		}
		if raw, err := os.ReadFile(path); err != nil || string(raw) != words || info.Mode().Perm() != 0o640 {
			t.Errorf("%s holds %q, %v, mode %v", path, raw, err, info.Mode())
		}
	}
	unmount(t, beside)
	h.allGone()
}

// TestFailureIsExplained checks that the status of a failure shows the step, the call, the code,
// and the plugin's message. The status also shows the number of tries, the time of the next try,
// and a fix.
func TestFailureIsExplained(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "2s", nil)
	h.register("data", "single-node-writer")
	h.fault(csitest.Fault{Method: st, Code: codes.Internal, Message: "no such flavour", Times: -1})
	h.volctl("volume", "claim", "data", "--alloc", "a", "--no-wait")
	h.await("three tries", func() bool { return h.calls(0).Count(st) >= 3 })
	h.shows("stuck")
	out := h.volctl("volume", "status", "data")
	for _, words := range []string{"NodeStageVolume", "failed in the plugin", "no such flavour", "×", "next in", "volctl "} {
		if !strings.Contains(out, words) {
			t.Errorf("the status does not say %q:\n%s", words, out)
		}
	}
	r := h.try("volume", "claim", "data", "--alloc", "a", "--timeout", "300ms")
	for _, words := range []string{"NodeStageVolume", "failed in the plugin", "no such flavour", "tries"} {
		if r.code != 5 || !strings.Contains(r.err, words) {
			t.Errorf("the claim does not say %q: exit %d, %s", words, r.code, r.err)
		}
	}
	h.must(h.cfg.Faults().Clear())
	h.volctl("volume", "detach", "data", "a")
	h.over("data")
}
