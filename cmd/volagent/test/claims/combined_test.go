package claims_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// loseDB kills the agent and starts another agent without the state database.
func (h *apart) loseDB() {
	h.T.Helper()
	h.Kill()
	h.Must(os.Remove(filepath.Join(h.Dir, "d", "state.db")))
	harness.RemoveCopies(h.Host)
	h.OmitFlags = []string{"--node-id"}
	h.Start()
}

// free waits until the agent no longer uses a volume. It asserts that no mount, claim or note
// remains.
func (h *apart) free(id string) {
	h.T.Helper()
	h.Volctl("wait", "--volume", id, "--for", "free", "--timeout", "60s")
	if m, c, n := h.Mounts(), h.Claims(), harness.Notes(h.Host); m != "" || len(c)+len(n) != 0 {
		h.T.Errorf("claims %q, notes %q, mounts\n%s", c, n, m)
	}
}

// TestAdoptedWayOut checks that the agent does not know the owner of a claim that it adopted. The
// end of the owner therefore has no effect on the claim. The operator can detach the claim without
// the plugin.
func TestAdoptedWayOut(t *testing.T) {
	t.Parallel()
	h := newApart(t, "10s", func(c *csitest.Config) { c.Attach = true })
	h.Register("data", "single-node-multi-writer")
	s := harness.StartSleeper(t, "")
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--owner", s.Owner())
	h.Volctl("volume", "claim", "data", "--alloc", "b", "--at", h.Mkdir("at"))
	h.lose()
	h.Volctl("volume", "claim", "data", "--alloc", "c", "--no-wait")
	h.Volctl("volume", "detach", "data", "b", "--without-plugin")
	mark := h.Mark()
	h.loseDB()
	if got := h.Claims(); !slices.Equal(got, []string{"data a adopted"}) && !slices.Equal(got, []string{"data a adopted, plugin unavailable"}) {
		t.Errorf("claims: %q", got)
	}
	s.Kill()
	h.ExpectExit(4, "claimed by", "volume", "deregister", "data", "-y")
	h.ExpectExit(4, "which is alive", "volume", "deregister", "data", "-force", "-y")
	if out, code := harness.Inspect(h.Host); code != 0 || !strings.Contains(out, "pending call: NodeUnpublishVolume") {
		t.Errorf("inspect: exit %d\n%s", code, out)
	}
	h.Volctl("volume", "detach", "data", "a", "--without-plugin")
	if m, n := h.Mounts(), harness.Notes(h.Host); m != "" || len(n) != 0 {
		t.Errorf("notes %q, mounts\n%s", n, m)
	}
	h.startPlugin()
	h.free("data")
	h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish)
	h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.Volctl("volume", "detach", "data", "a")
	h.free("data")
}

// TestOwnerEndsWithoutPlugin ends the owner of a claim while the plugin is down. The agent's own
// detach waits for the plugin, but an operator can detach without the plugin. Then the agent grants
// the volume to the claim request that was waiting.
func TestOwnerEndsWithoutPlugin(t *testing.T) {
	t.Parallel()
	h := newApart(t, "10s", func(c *csitest.Config) { c.Attach = true })
	h.Register("data", "single-node-writer")
	s := harness.StartSleeper(t, "")
	path := h.Volctl("volume", "claim", "data", "--alloc", "a", "--owner", s.Owner())
	sit := harness.StartSleeper(t, path)
	h.lose()
	h.ExpectExit(4, "is running", "volume", "detach", "data", "a", "--without-plugin", "--timeout", "1s")
	s.Kill()
	h.Await("the release", func() bool {
		return strings.Contains(h.Volctl("claim", "list", "-o", "json"), `"unpublishing"`)
	})
	waits := h.StartVolctl("volume", "claim", "data", "--alloc", "b", "--timeout", "70s")
	h.ExpectExit(4, "stays detaching, and the agent retries", "volume", "detach", "data", "a", "--without-plugin")
	// Stop the agent with SIGTERM during the detach.
	h.Must(h.Signal(syscall.SIGTERM))
	h.Start()
	h.ExpectExit(4, "the agent retries", "volume", "detach", "data", "a", "--without-plugin")
	sit.Kill()
	h.Volctl("volume", "detach", "data", "a", "--without-plugin", "--timeout", "30s")
	h.startPlugin()
	if r := <-waits; r.Code != 0 {
		t.Errorf("the claim of who waited: %+v", r)
	}
	h.Volctl("volume", "detach", "data", "b")
	h.free("data")
}

// TestForgetThenLose deregisters a volume by force and then removes the state database. The agent
// must not adopt claims of this volume from notes.
func TestForgetThenLose(t *testing.T) {
	t.Parallel()
	for _, forget := range []string{"", "--forget"} {
		t.Run("forget="+forget, func(t *testing.T) {
			h := newApart(t, "10s", nil)
			h.Register("data", "single-node-writer")
			s := harness.StartSleeper(t, "")
			h.Volctl("volume", "claim", "data", "--alloc", "a", "--owner", s.Owner())
			h.ExpectExit(4, "which is alive", "volume", "deregister", "data", "-force", "-y")
			h.lose()
			s.Kill()
			args := []string{"volume", "deregister", "data", "-force", "-y"}
			if forget != "" {
				args = append(args, forget)
			}
			h.Await("the owner to be gone", func() bool { return h.Try(args...).Code == 0 })
			if n := harness.Notes(h.Host); len(n) != 0 {
				t.Errorf("notes: %q", n)
			}
			mounts := h.Mounts()
			h.loseDB()
			if c := h.Claims(); len(c) != 0 {
				t.Errorf("claims: %q", c)
			}
			h.startPlugin()
			h.Volctl("wait", "--plugin", "rec", "--timeout", "30s")
			h.Register("data", "single-node-writer")
			h.ExpectExit(5, "was not made by this volume's staging", "volume", "claim", "data", "--alloc", "a", "--timeout", "2s")
			if out, code := harness.Inspect(h.Host); code != 1 || !strings.Contains(out, "2 findings") {
				t.Errorf("inspect: exit %d\n%s", code, out)
			}
			if h.Mounts() != mounts {
				t.Errorf("mounts:\n%s", h.Mounts())
			}
			for _, line := range slices.Backward(strings.Split(strings.TrimSpace(mounts), "\n")) {
				h.Must(syscall.Unmount(strings.Fields(line)[4], 0))
			}
		})
	}
}

// TestManyOwned checks that the agent detaches all claims of an owner when this owner ends.
func TestManyOwned(t *testing.T) {
	const n = 100
	h := harness.StartRecorded(t, "10s", nil)
	s := harness.StartSleeper(t, "")
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "---\nid: v%d\nplugin_id: rec\nexternal_id: ext/%d\n", i, i)
	}
	file := filepath.Join(h.Dir, "many.yaml")
	h.Must(os.WriteFile(file, []byte(text.String()), 0o644))
	h.Volctl("volume", "register", file)
	for i := range n {
		h.Volctl("volume", "claim", fmt.Sprintf("v%d", i), "--alloc", "a", "--owner", s.Owner(), "--no-wait")
	}
	h.Await("all mounted", func() bool { return strings.Count(h.Volctl("volume", "list"), " mounted ") == n })
	begun := time.Now()
	s.Kill()
	h.Await("all claims to go", func() bool { return len(h.Claims()) == 0 })
	t.Logf("%d claims released after %s", n, time.Since(begun))
	h.Await("all free", func() bool { return strings.Count(h.Volctl("volume", "list"), " free ") == n })
	if n := harness.Notes(h.Host); len(n) != 0 {
		t.Errorf("notes: %q", n)
	}
}

// TestLazyThenKilled kills the agent after a lazy unmount and before the agent records this
// unmount. The next agent must not conclude from the missing mount that no process uses the volume.
func TestLazyThenKilled(t *testing.T) {
	t.Parallel()
	h := newApart(t, "1s", func(c *csitest.Config) { c.Attach = true })
	h.Register("data", "single-node-writer")
	path := h.Volctl("volume", "claim", "data", "--alloc", "a")
	harness.StartSleeper(t, path)
	h.lose()
	h.Volctl("volume", "detach", "data", "a", "--no-wait")
	h.Kill()
	h.Must(syscall.Unmount(path, syscall.MNT_DETACH))
	mark := h.Mark()
	h.Start()
	h.ExpectExit(0, "unmounted lazily", "volume", "detach", "data", "a", "--without-plugin=lazy")
	h.startPlugin()
	h.Await("the detach to be refused", func() bool {
		return strings.Contains(h.Volctl("volume", "status", "data"), "nothing on this host tells whether it is still in use")
	})
	h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnstage)
}

// TestInspectInDoubt checks that `inspect` explains a mount that a call with an unknown result
// made. The explanation comes from the volume's record or from the pending calls of a forced
// deregister.
func TestInspectInDoubt(t *testing.T) {
	t.Parallel()
	h := newApart(t, "10s", nil)
	h.Register("data", "single-node-writer")
	s := harness.StartSleeper(t, "")
	h.AddFaults(csitest.Fault{Method: csitest.NodePublish, Crash: csitest.AfterEffect})
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--owner", s.Owner(), "--no-wait")
	path := filepath.Join(h.Dir, "d/csi/rec/per-alloc/a/data")
	h.Await("the plugin's end", func() bool { return strings.Contains(h.Volctl("volume", "status", "data"), "NodePublishVolume") })
	says := func(words ...string) {
		t.Helper()
		out, code := harness.Inspect(h.Host)
		for _, w := range append(words, path+"  in doubt (published for a)") {
			if code != 0 || !strings.Contains(out, w) {
				t.Errorf("exit %d, or it does not say %q:\n%s", code, w, out)
			}
		}
	}
	says(fmt.Sprintf("owner pid %d", s.PID()))
	h.Volctl("volume", "detach", "data", "a", "--force", "--no-wait")
	h.Volctl("volume", "deregister", "data", "-force", "-y")
	says(`leftover of volume "data"`, "pending call: "+path+" may still be mounted")
	h.killPlugin()
	h.startPlugin()
	h.Await("the debt to be paid", func() bool { return h.Mounts() == "" })
}

// TestOwnerEndsOnFullDisk ends an owner while the state disk is full. The agent retries the detach
// until it can store the change, and logs the failure only once. Until then the volume does not
// change, not even if a request uses force or excludes the plugin.
func TestOwnerEndsOnFullDisk(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	s := harness.StartSleeper(t, "")
	for _, id := range []string{"one", "two"} {
		h.Register(id, "single-node-writer")
		h.Volctl("volume", "claim", id, "--alloc", "a", "--owner", s.Owner())
	}
	mounts, mark := h.Mounts(), h.Mark()
	end := harness.FailSyscall(h.Host, "pwrite64", "ENOSPC")
	s.Kill()
	said := func(words string) int {
		raw, err := os.ReadFile(h.Log.Name())
		h.Must(err)
		return strings.Count(string(raw), words)
	}
	h.Await("some tries", func() bool { return said("cannot detach a claim whose owner is gone") >= 6 })
	if n := said("cannot detach claims whose owners are gone"); n != 1 {
		t.Errorf("that is told %d times", n)
	}
	if r := h.Try("volume", "detach", "one", "a", "--without-plugin"); r.Code != 1 || !strings.Contains(r.Err, "no space left") {
		t.Errorf("a release on a full disk: exit %d, %s", r.Code, r.Err)
	}
	if r := h.Try("volume", "deregister", "two", "-force", "-y"); r.Code != 1 || !strings.Contains(r.Err, "no space left") {
		t.Errorf("a deregister on a full disk: exit %d, %s", r.Code, r.Err)
	}
	if got := h.Claims(); len(got) != 2 || h.Mounts() != mounts {
		t.Errorf("claims %q, mounts\n%s", got, h.Mounts())
	}
	h.ExpectCalls(mark)
	end()
	h.AwaitFree("one")
	h.AwaitFree("two")
	if n := harness.Notes(h.Host); len(n) != 0 || h.Mounts() != "" {
		t.Errorf("notes %q, mounts\n%s", n, h.Mounts())
	}
}

// TestShutdown stops the agent with SIGTERM and simulates a reboot. The agent mounts the claimed
// volume again at once, although it had given up an undo call. No leftover of the volume that was
// deregistered by force remains.
func TestShutdown(t *testing.T) {
	boot := harness.FakeBoots(t)
	h := newApart(t, "2m", nil)
	for _, id := range []string{"kept", "given"} {
		h.Register(id, "single-node-writer")
	}
	h.Volctl("volume", "claim", "given", "--alloc", "a")
	h.Volctl("volume", "claim", "kept", "--alloc", "a")
	mark := h.Mark()
	h.AddFaults(csitest.Fault{Method: csitest.NodeUnpublish, Volume: "ext/kept", Hang: true, Times: -1})
	h.Volctl("volume", "detach", "kept", "a", "--no-wait")
	h.Await("the call", func() bool { return h.Calls(mark).Count(csitest.NodeUnpublish) == 1 })
	h.Volctl("volume", "detach", "kept", "a", "--without-plugin=lazy")
	h.lose()
	h.Must(h.Config.Faults().Clear())
	h.Volctl("volume", "claim", "kept", "--alloc", "b", "--no-wait")
	h.Volctl("volume", "detach", "given", "a", "--no-wait")
	h.Volctl("volume", "deregister", "given", "-force", "-y")
	h.Must(h.Signal(syscall.SIGTERM))
	harness.UnmountAll(h.Host)
	boot(t)
	mark = h.Mark()
	h.Start()
	h.startPlugin()
	h.Volctl("wait", "--volume", "kept", "--for", "mounted", "--timeout", "60s")
	if out := h.Volctl("node", "status"); strings.Contains(out, "by force") {
		t.Errorf("node status says\n%s", out)
	}
	if n := h.Calls(mark).Count(csitest.NodeUnpublish); n != 1 {
		t.Errorf("calls: %v", h.Calls(mark).Methods())
	}
	h.Volctl("volume", "detach", "kept", "b")
}
