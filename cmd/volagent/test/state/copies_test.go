package state_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/csitest"
)

func newestCopy(h *harness.Host) string { return filepath.Join(h.Dir, "d", "state.copy-1") }

// copyNow makes the agent write an automatic copy of its state. For this purpose it restarts the
// agent, because a running agent writes no new copy soon after its last one. copyNow waits until
// the function is accepts the copy.
func copyNow(h *harness.Host, is func(statedb.View) bool) {
	h.T.Helper()
	h.Must(h.Signal(syscall.SIGTERM))
	harness.RemoveCopies(h)
	h.Start()
	h.Await("an automatic copy", func() bool {
		snap, _, err := statedb.Inspect(newestCopy(h))
		return err == nil && is(snap)
	})
}

// TestLostTakesCopy checks that an agent that lost its state database restores the last automatic
// copy. From the copy it restores unclaimed volumes, plugins that were registered by a command, and
// pending calls. It restores a claim only if a mount or a note proves the claim. It sends
// ControllerUnpublishVolume for storage that may still be connected.
func TestLostTakesCopy(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	for _, id := range []string{"free", "held", "ended", "forced"} {
		h.Register(id, "single-node-writer")
	}
	for _, id := range []string{"held", "ended", "forced"} {
		h.Volctl("volume", "claim", id, "--alloc", "x")
	}
	late := filepath.Join(h.Dir, "late.yaml")
	h.Must(os.WriteFile(late, []byte("id: late\nsocket: "+filepath.Join(h.Dir, "none.sock")+"\n"), 0o600))
	// The plugin stays registered although the command fails.
	h.Try("plugin", "register", late, "--timeout", "1s")
	h.Volctl("plugin", "stop", "rec", "--force")
	h.Volctl("volume", "detach", "forced", "x", "--without-plugin")
	h.Volctl("volume", "deregister", "forced", "-force", "-y")
	h.Register("last", "single-node-writer")
	copyNow(h.Host, func(snap statedb.View) bool {
		return len(snap.Volumes()) == 4 && len(statedb.Leftovers.All(snap)) == 1 && len(statedb.Registered.All(snap)) == 1
	})
	// Only the copy still contains this claim.
	h.Volctl("volume", "detach", "ended", "x", "--without-plugin")

	h.Kill()
	since := h.Mark()
	for _, name := range []string{"state.db", "state.log"} {
		h.Must(os.Remove(filepath.Join(h.Dir, "d", name)))
	}
	h.Start()
	h.ExpectOutput("automatic copy", "node", "status")
	if got, want := h.Volctl("volume", "list", "-q"), "ended\nfree\nheld\nlast"; got != want {
		t.Errorf("volumes are %q, want %q", got, want)
	}
	// The agent has adopted the claim "held". It is still undoing the claim "ended", as after a
	// detach.
	if got, want := h.Claims(), []string{"ended x plugin unavailable", "held x adopted, plugin unavailable"}; !slices.Equal(got, want) {
		t.Errorf("claims are %q, want %q", got, want)
	}
	if plugins := h.Volctl("plugin", "list", "-q"); !strings.Contains(plugins, "late") {
		t.Errorf("plugins are %q", plugins)
	}
	h.ExpectOutput("deregistered by force", "node", "status")
	h.ExpectCalls(since)

	// The plugin stays stopped, because the operator had stopped it. When the plugin runs again,
	// the agent makes the pending calls and disconnects storage that may still be connected.
	h.Volctl("plugin", "start", "rec")
	h.Volctl("wait", "--plugin", "rec", "--timeout", "60s")
	for _, id := range []string{"free", "ended", "last"} {
		h.Volctl("wait", "--volume", id, "--for", "free", "--timeout", "60s")
	}
	h.Await("the pending calls to be made", func() bool {
		return !strings.Contains(h.Volctl("node", "status"), "deregistered by force")
	})
	if n := h.Calls(since).Count(csitest.ControllerUnpublish); n < 4 {
		t.Errorf("%d volumes were detached that may be attached, of 4: %v", n, h.Calls(since).Methods())
	}
	h.Volctl("volume", "claim", "ended", "--alloc", "x")
	for _, id := range []string{"ended", "held"} {
		h.Volctl("volume", "detach", id, "x")
	}
}

// TestLostCopyKeepsAway checks that the agent does not restore a volume from the copy if an
// unexplained mount of the volume exists. Otherwise the agent would undo uncertain steps while a
// process still uses the mount.
func TestLostCopyKeepsAway(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	copyNow(h.Host, func(snap statedb.View) bool { return len(snap.Volumes()) == 1 })
	h.Volctl("wait", "--plugin", "rec", "--timeout", "60s")
	// The copy is older than this claim.
	target := h.Volctl("volume", "claim", "data", "--alloc", "x")
	staged := harness.Decode[api.Volume](h.Host, "volume", "status", "data").StagingPath
	h.Kill()
	since, mounts := h.Mark(), h.Mounts()
	h.Must(os.Remove(filepath.Join(h.Dir, "d", "csi", "rec", "meta", "data@x.json")))
	h.Must(os.Remove(filepath.Join(h.Dir, "d", "state.db")))
	h.Start("rec")
	if got := h.Volctl("volume", "list", "-q"); got != "" {
		t.Errorf("volumes are %q", got)
	}
	h.ExpectCalls(since)
	if now := h.Mounts(); now != mounts {
		t.Errorf("mounts were\n%s and are\n%s", mounts, now)
	}
	if ids := harness.Doctor(h.Host).IDs(); !slices.Contains(ids, "mount-unexplained:"+target) {
		t.Errorf("doctor finds %q", ids)
	}
	h.Must(errors.Join(syscall.Unmount(target, 0), syscall.Unmount(staged, 0)))
}
