package main_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/csitest"
)

func (h *host) newestCopy() string { return filepath.Join(h.dir, "d", "state.copy-1") }

// forgetCopies removes the automatic copies of the state database.
func (h *host) forgetCopies() {
	h.t.Helper()
	copies, err := filepath.Glob(filepath.Join(h.dir, "d", "state.copy-*"))
	h.must(err)
	for _, path := range copies {
		h.must(os.Remove(path))
	}
}

// copyNow restarts the agent, so that the agent makes an automatic copy. It waits until the
// function is accepts the copy. The restart is necessary because a running agent makes no new copy
// while its last one is recent.
func (h *host) copyNow(is func(statedb.View) bool) {
	h.t.Helper()
	h.must(h.signal(syscall.SIGTERM))
	h.forgetCopies()
	h.start()
	h.await("an automatic copy", func() bool {
		snap, _, err := statedb.Inspect(h.newestCopy())
		return err == nil && is(snap)
	})
}

// TestLostTakesCopy checks that an agent that lost its state restores the state from the last
// automatic copy. The agent restores unclaimed volumes, plugins that were registered at run time,
// and pending calls. It restores only the claims that a mount or a note proves. It sends
// ControllerUnpublishVolume for storage that may still be connected.
func TestLostTakesCopy(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	for _, id := range []string{"free", "held", "ended", "forced"} {
		h.register(id, "single-node-writer")
	}
	for _, id := range []string{"held", "ended", "forced"} {
		h.volctl("volume", "claim", id, "--alloc", "x")
	}
	late := filepath.Join(h.dir, "late.yaml")
	h.must(os.WriteFile(late, []byte("id: late\nsocket: "+filepath.Join(h.dir, "none.sock")+"\n"), 0o600))
	h.try("plugin", "register", late, "--timeout", "1s") // the registration remains although the plugin is not ready
	h.volctl("plugin", "stop", "rec", "--force")
	h.volctl("volume", "detach", "forced", "x", "--without-plugin")
	h.volctl("volume", "deregister", "forced", "-force", "-y")
	h.register("last", "single-node-writer")
	h.copyNow(func(snap statedb.View) bool {
		return len(snap.Volumes()) == 4 && len(statedb.Leftovers.All(snap)) == 1 && len(statedb.Registered.All(snap)) == 1
	})
	h.volctl("volume", "detach", "ended", "x", "--without-plugin") // the copy still contains this claim

	h.kill()
	since := h.mark()
	for _, name := range []string{"state.db", "state.log"} {
		h.must(os.Remove(filepath.Join(h.dir, "d", name)))
	}
	h.start()
	h.says("automatic copy", "node", "status")
	if got, want := h.volctl("volume", "list", "-q"), "ended\nfree\nheld\nlast"; got != want {
		t.Errorf("volumes are %q, want %q", got, want)
	}
	// The agent has adopted one claim. It is still unmounting the volume of the other claim, as
	// after a detach.
	if got, want := h.claims(), []string{"ended x plugin unavailable", "held x adopted, plugin unavailable"}; !slices.Equal(got, want) {
		t.Errorf("claims are %q, want %q", got, want)
	}
	if plugins := h.volctl("plugin", "list", "-q"); !strings.Contains(plugins, "late") {
		t.Errorf("plugins are %q", plugins)
	}
	h.says("deregistered by force", "node", "status")
	h.expect(since)

	// The operator stopped the plugin, so it stays stopped. Once it runs again, the agent makes the
	// pending calls and disconnects storage that may still be connected.
	h.volctl("plugin", "start", "rec")
	h.volctl("wait", "--plugin", "rec", "--timeout", "60s")
	for _, id := range []string{"free", "ended", "last"} {
		h.volctl("wait", "--volume", id, "--for", "free", "--timeout", "60s")
	}
	h.await("the pending calls to be made", func() bool {
		return !strings.Contains(h.volctl("node", "status"), "deregistered by force")
	})
	if n := h.calls(since).Count(csitest.ControllerUnpublish); n < 4 {
		t.Errorf("%d volumes were detached that may be attached, of 4: %v", n, h.calls(since).Methods())
	}
	h.volctl("volume", "claim", "ended", "--alloc", "x")
	for _, id := range []string{"ended", "held"} {
		h.volctl("volume", "detach", id, "x")
	}
}

// TestLostCopyKeepsAway checks that the agent does not restore a volume of the copy if an
// unexplained mount exists for that volume. Otherwise the agent would undo uncertain steps while a
// process still uses that mount.
func TestLostCopyKeepsAway(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	h.copyNow(func(snap statedb.View) bool { return len(snap.Volumes()) == 1 })
	h.volctl("wait", "--plugin", "rec", "--timeout", "60s")
	target := h.volctl("volume", "claim", "data", "--alloc", "x") // the copy does not contain this claim
	staged := decode[api.Volume](h.host, "volume", "status", "data").StagingPath
	h.kill()
	since, mounts := h.mark(), h.mounts()
	h.must(os.Remove(filepath.Join(h.dir, "d", "csi", "rec", "meta", "data@x.json")))
	h.must(os.Remove(filepath.Join(h.dir, "d", "state.db")))
	h.start("rec")
	if got := h.volctl("volume", "list", "-q"); got != "" {
		t.Errorf("volumes are %q", got)
	}
	h.expect(since)
	if now := h.mounts(); now != mounts {
		t.Errorf("mounts were\n%s and are\n%s", mounts, now)
	}
	if ids := h.doctor().ids(); !slices.Contains(ids, "mount-unexplained:"+target) {
		t.Errorf("doctor finds %q", ids)
	}
	h.must(errors.Join(syscall.Unmount(target, 0), syscall.Unmount(staged, 0)))
}
