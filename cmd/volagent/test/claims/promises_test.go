package claims_test

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

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// The tests in this file check that the agent keeps its promises in difficult situations. In each
// of these situations, other software is known to damage data or to disturb the users of a volume.

// TestDeadMount kills the FUSE daemon of a volume with two claims. The agent unmounts all mounts of
// the volume, and then mounts them again at the paths of both claims.
func TestDeadMount(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-multi-writer")
	h.AddFaults(csitest.Fault{Method: csitest.NodeStage, Twist: csitest.Served})
	paths := []string{h.Volctl("volume", "claim", "data", "--alloc", "a"), h.Volctl("volume", "claim", "data", "--alloc", "b")}
	claims, mark := h.Volctl("claim", "list", "-o", "json"), h.Mark()
	h.SignalDaemons(syscall.SIGKILL)
	h.Await("the death", func() bool { _, err := os.ReadDir(paths[0]); return errors.Is(err, syscall.ENOTCONN) })
	h.Await("the repair", func() bool {
		return strings.Contains(h.Volctl("volume", "status", "data"), "mounted, writable") && h.Calls(mark).Count(csitest.NodePublish) == 2
	})
	h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.NodeStage, csitest.NodePublish, csitest.NodePublish)
	if got := h.Volctl("claim", "list", "-o", "json"); got != claims {
		t.Errorf("the claims changed:\n%s\nwere:\n%s", got, claims)
	}
	for _, path := range paths {
		h.Must(os.WriteFile(filepath.Join(path, filepath.Base(filepath.Dir(path))), nil, 0o644))
	}
	h.Volctl("volume", "detach", "data", "--all")
	h.ExpectClean("data")
}

// TestForeignMount replaces a mount of the agent by another file system. The agent recognizes the
// other device, and neither uses nor changes the foreign mount, even after a restart and a new
// claim. The status reports the foreign mount. When it is gone, the agent mounts the claimed volume
// again.
func TestForeignMount(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"target", "staging"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			h := harness.StartRecorded(t, "10s", nil)
			h.Register("data", "single-node-writer")
			path := h.Volctl("volume", "claim", "data", "--alloc", "a")
			at := path
			if where == "staging" {
				at = h.StagingPath("data")
			}
			planted, mark := filepath.Join(at, "planted"), h.Mark()
			harness.WhileFrozen(h.Host, func() {
				harness.Unmount(t, path)
				if at != path {
					harness.Unmount(t, at)
				}
				h.Must(syscall.Mount("tmpfs", at, "tmpfs", 0, "size=1m"))
				h.Must(os.WriteFile(planted, []byte("theirs"), 0o644))
			})
			h.AwaitStatus("not made by this")
			h.Kill()
			h.Start("rec")
			h.AwaitStatus("not made by this")
			if r := h.Try("volume", "claim", "data", "--alloc", "a", "--timeout", "300ms"); r.Code == 0 || r.Out != "" {
				t.Errorf("a claim gave out what is not the volume: exit %d, %s", r.Code, r.Out)
			}
			h.ExpectCalls(mark)
			if raw, err := os.ReadFile(planted); string(raw) != "theirs" {
				t.Errorf("the other's file: %q, %v", raw, err)
			}
			harness.Unmount(t, at)
			h.Await("the repair", func() bool { return strings.Contains(h.Volctl("volume", "status", "data"), "mounted, writable") })
			h.Must(os.WriteFile(filepath.Join(path, "file"), nil, 0o644))
			h.Volctl("volume", "detach", "data", "a")
			h.ExpectClean("data")
		})
	}
}

// TestHungStorage checks a mount that does not respond. The agent reports the mount and does not
// touch it. Every status command takes less than a second. Clients can claim and detach other
// volumes, and the agent can stop and start. If the mount responds again, the agent changes
// nothing. If the mount dies, the agent mounts the volume again.
func TestHungStorage(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	h.Register("other", "single-node-writer")
	h.AddFaults(csitest.Fault{Method: csitest.NodeStage, Twist: csitest.Served})
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	mounts, mark := h.Mounts(), h.Mark()
	h.SignalDaemons(syscall.SIGSTOP)
	quick := func(args ...string) string {
		t.Helper()
		from := time.Now()
		out := h.Volctl(args...)
		// The agent promises 1 s. The limit is longer because the machine may be under load.
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
	h.Must(h.Signal(syscall.SIGTERM))
	h.Start("rec")
	if out := quick("volume", "status", "data"); !strings.Contains(out, "no answer since") {
		t.Errorf("the status after a restart says\n%s", out)
	}
	if calls := h.Calls(mark).Of("ext/data"); len(calls) > 0 {
		t.Errorf("what hangs was not left alone:\n%s", calls)
	}
	h.SignalDaemons(syscall.SIGCONT)
	h.AwaitStatus("mounted, writable")
	if got := h.Mounts(); got != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	h.SignalDaemons(syscall.SIGSTOP)
	h.AwaitStatus("no answer since")
	h.SignalDaemons(syscall.SIGKILL)
	h.AwaitStatus("mounted, writable")
	h.Volctl("volume", "detach", "data", "a")
	h.ExpectClean("data")
}

// TestHungPublish checks a NodePublishVolume that returns OK although its mount never responds. The
// claim command fails in time and prints no path. Other volumes are not affected. When the mount
// dies, the agent unmounts it.
func TestHungPublish(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "2s", nil)
	h.Register("data", "single-node-writer")
	h.Register("other", "single-node-writer")
	h.AddFaults(csitest.Fault{Method: csitest.NodePublish, Volume: "ext/data", Twist: csitest.Hung})
	r := h.Try("volume", "claim", "data", "--alloc", "a", "--timeout", "1s")
	if r.Code != 5 || r.Out != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	h.Volctl("volume", "claim", "other", "--alloc", "a")
	h.Volctl("volume", "detach", "other")
	h.Must(h.Config.Faults().Clear()) // without the fault, the mount is dead
	h.ExpectClean("data")
	h.UseTwice()
}

// TestPluginDown starts an agent whose plugin does not become ready. The claims stay mounted, and
// the status shows that the plugin is unavailable. The agent neither unmounts nor mounts any
// volume, and does not disturb processes that use the volume.
func TestPluginDown(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	file := h.StartWriter(h.Volctl("volume", "claim", "data", "--alloc", "a"))
	claims, mounts, mark := h.Volctl("claim", "list", "-o", "json"), h.Mounts(), h.Mark()
	pid := h.PluginPID("rec")
	h.Kill()
	h.Must(syscall.Kill(pid, syscall.SIGKILL))
	h.AddFaults(csitest.Fault{Method: csitest.Probe, Code: codes.Unavailable, Times: -1})
	h.Start()
	h.AwaitStatus("mounted, writable, plugin unavailable")
	if out := h.Volctl("volume", "claim", "data", "--alloc", "a"); out != filepath.Dir(file) {
		t.Errorf("the same claim again says %q", out)
	}
	if got := h.Mounts(); got != mounts {
		t.Errorf("the mounts changed:\n%s\nwere:\n%s", got, mounts)
	}
	was := harness.FileSize(file)
	h.Await("the writer to go on", func() bool { return harness.FileSize(file) > was })
	h.Must(h.Config.Faults().Clear())
	h.Volctl("wait", "--plugin", "rec", "--timeout", "60s")
	h.Await("the plugin to be available", func() bool { return !strings.Contains(h.Volctl("volume", "status", "data"), "unavailable") })
	if got := h.Volctl("claim", "list", "-o", "json"); got != claims {
		t.Errorf("the claims changed:\n%s\nwere:\n%s", got, claims)
	}
	h.ExpectCalls(mark)
}

// TestHolderIsNamed checks the error of a refused claim. The error names the alloc that holds the
// volume, the age of its claim, and the command that frees the volume. This command must work.
func TestHolderIsNamed(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "first one")
	r := h.Try("volume", "claim", "data", "--alloc", "second")
	if r.Code != 4 || !strings.Contains(r.Err, `"first one" (mounted, for `) {
		t.Errorf("exit %d, %s", r.Code, r.Err)
	}
	_, hint, _ := strings.Cut(r.Err, "hint: ")
	cmd := exec.Command("sh", "-c", hint)
	cmd.Env = h.Env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the hint %q: %v\n%s", hint, err, out)
	}
	h.Volctl("volume", "claim", "data", "--alloc", "second")
	h.Volctl("volume", "detach", "data")
	h.ExpectClean("data")
}

// TestPlanted checks that a detach does not remove foreign files and mounts from the agent's
// directories. The foreign files are under a target and a staging path, and a foreign mount is
// beside these paths.
func TestPlanted(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	target := h.Volctl("volume", "claim", "data", "--alloc", "a")
	staging := h.StagingPath("data")
	h.Must(os.WriteFile(filepath.Join(target, "file"), []byte("kept"), 0o644))
	// Unmount the volume briefly and write files to the directories below its mounts.
	planted := map[string]string{
		filepath.Join(target, "under"): "under the target", filepath.Join(staging, "under"): "under the staging path",
		filepath.Join(filepath.Dir(target), "beside"): "beside the target", filepath.Join(h.Dir, "d/csi/rec/staging/beside/file"): "another's mount",
	}
	beside := filepath.Join(h.Dir, "d/csi/rec/staging/beside")
	h.Must(os.Mkdir(beside, 0o755))
	h.Must(syscall.Mount("tmpfs", beside, "tmpfs", 0, "size=1m"))
	harness.WhileFrozen(h.Host, func() {
		harness.Unmount(t, target)
		harness.Unmount(t, staging)
		for path, words := range planted {
			h.Must(os.WriteFile(path, []byte(words), 0o640))
		}
	})
	h.Await("the repair", func() bool { return strings.Contains(h.Volctl("volume", "status", "data"), "mounted, writable") })
	h.Volctl("volume", "detach", "data", "a")
	h.Kill()
	h.Start("rec")
	h.Volctl("volume", "deregister", "data")
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
	harness.Unmount(t, beside)
	h.ExpectNoMounts()
}

// TestFailureIsExplained checks how the status explains a failure. The status shows the step, the
// call, its error code, the plugin's message, the number of tries, the time of the next try, and a
// fix.
func TestFailureIsExplained(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "2s", nil)
	h.Register("data", "single-node-writer")
	h.AddFaults(csitest.Fault{Method: csitest.NodeStage, Code: codes.Internal, Message: "no such flavour", Times: -1})
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--no-wait")
	h.Await("three tries", func() bool { return h.Calls(0).Count(csitest.NodeStage) >= 3 })
	h.AwaitStatus("stuck")
	out := h.Volctl("volume", "status", "data")
	for _, words := range []string{"NodeStageVolume", "failed in the plugin", "no such flavour", "×", "next in", "volctl "} {
		if !strings.Contains(out, words) {
			t.Errorf("the status does not say %q:\n%s", words, out)
		}
	}
	r := h.Try("volume", "claim", "data", "--alloc", "a", "--timeout", "300ms")
	for _, words := range []string{"NodeStageVolume", "failed in the plugin", "no such flavour", "tries"} {
		if r.Code != 5 || !strings.Contains(r.Err, words) {
			t.Errorf("the claim does not say %q: exit %d, %s", words, r.Code, r.Err)
		}
	}
	h.Must(h.Config.Faults().Clear())
	h.Volctl("volume", "detach", "data", "a")
	h.ExpectClean("data")
}
