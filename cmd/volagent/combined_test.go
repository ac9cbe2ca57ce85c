package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/csitest"
)

// loseDB kills the agent and starts another agent without the state database.
func (h *apart) loseDB() {
	h.t.Helper()
	h.kill()
	h.must(os.Remove(filepath.Join(h.dir, "d", "state.db")))
	h.forgetCopies()
	h.flags = []string{"--node-id"}
	h.start()
}

// free waits until the agent no longer uses a volume. It asserts that no mount, claim or note
// remains.
func (h *apart) free(id string) {
	h.t.Helper()
	h.volctl("wait", "--volume", id, "--for", "free", "--timeout", "60s")
	if m, c, n := h.mounts(), h.claims(), h.notes(); m != "" || len(c)+len(n) != 0 {
		h.t.Errorf("claims %q, notes %q, mounts\n%s", c, n, m)
	}
}

// TestAdoptedWayOut checks that the agent adopts a claim without its owner. The end of the owner
// then has no effect. The operator can detach the adopted claim without the plugin.
func TestAdoptedWayOut(t *testing.T) {
	t.Parallel()
	h := newApart(t, "10s", func(c *csitest.Config) { c.Attach = true })
	h.register("data", "single-node-multi-writer")
	s := newSleeper(t, "")
	h.volctl("volume", "claim", "data", "--alloc", "a", "--owner", s.owner())
	h.volctl("volume", "claim", "data", "--alloc", "b", "--at", h.mkdir("at"))
	h.lose()
	h.volctl("volume", "claim", "data", "--alloc", "c", "--no-wait")
	h.volctl("volume", "detach", "data", "b", "--without-plugin")
	mark := h.mark()
	h.loseDB()
	if got := h.claims(); !slices.Equal(got, []string{"data a adopted"}) && !slices.Equal(got, []string{"data a adopted, plugin unavailable"}) {
		t.Errorf("claims: %q", got)
	}
	s.kill()
	h.exits(4, "claimed by", "volume", "deregister", "data", "-y")
	h.exits(4, "which is alive", "volume", "deregister", "data", "-force", "-y")
	if out, code := h.inspect(); code != 0 || !strings.Contains(out, "pending call: NodeUnpublishVolume") {
		t.Errorf("inspect: exit %d\n%s", code, out)
	}
	h.volctl("volume", "detach", "data", "a", "--without-plugin")
	if m, n := h.mounts(), h.notes(); m != "" || len(n) != 0 {
		t.Errorf("notes %q, mounts\n%s", n, m)
	}
	h.startPlugin()
	h.free("data")
	h.expect(mark, csitest.NodeUnpublish, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish)
	h.volctl("volume", "claim", "data", "--alloc", "a")
	h.volctl("volume", "detach", "data", "a")
	h.free("data")
}

// TestOwnerEndsWithoutPlugin ends the owner of a claim while the plugin is down. The agent's own
// detach waits for the plugin, but an operator can detach without the plugin. Then the agent grants
// the volume to the claim request that was waiting.
func TestOwnerEndsWithoutPlugin(t *testing.T) {
	t.Parallel()
	h := newApart(t, "10s", func(c *csitest.Config) { c.Attach = true })
	h.register("data", "single-node-writer")
	s := newSleeper(t, "")
	path := h.volctl("volume", "claim", "data", "--alloc", "a", "--owner", s.owner())
	sit := newSleeper(t, path)
	h.lose()
	h.exits(4, "is running", "volume", "detach", "data", "a", "--without-plugin", "--timeout", "1s")
	s.kill()
	h.await("the release", func() bool {
		return strings.Contains(h.volctl("claim", "list", "-o", "json"), `"unpublishing"`)
	})
	waits := h.background("volume", "claim", "data", "--alloc", "b", "--timeout", "70s")
	h.exits(4, "stays detaching, and the agent retries", "volume", "detach", "data", "a", "--without-plugin")
	// Stop the agent in order, in the middle of the detach.
	h.must(h.signal(syscall.SIGTERM))
	h.start()
	h.exits(4, "the agent retries", "volume", "detach", "data", "a", "--without-plugin")
	sit.kill()
	h.volctl("volume", "detach", "data", "a", "--without-plugin", "--timeout", "30s")
	h.startPlugin()
	if r := <-waits; r.code != 0 {
		t.Errorf("the claim of who waited: %+v", r)
	}
	h.volctl("volume", "detach", "data", "b")
	h.free("data")
}

// TestForgetThenLose deregisters a volume by force and then removes the state database. The agent
// must not adopt claims of this volume from notes.
func TestForgetThenLose(t *testing.T) {
	t.Parallel()
	for _, forget := range []string{"", "--forget"} {
		t.Run("forget="+forget, func(t *testing.T) {
			h := newApart(t, "10s", nil)
			h.register("data", "single-node-writer")
			s := newSleeper(t, "")
			h.volctl("volume", "claim", "data", "--alloc", "a", "--owner", s.owner())
			h.exits(4, "which is alive", "volume", "deregister", "data", "-force", "-y")
			h.lose()
			s.kill()
			args := []string{"volume", "deregister", "data", "-force", "-y"}
			if forget != "" {
				args = append(args, forget)
			}
			h.await("the owner to be gone", func() bool { return h.try(args...).code == 0 })
			if n := h.notes(); len(n) != 0 {
				t.Errorf("notes: %q", n)
			}
			mounts := h.mounts()
			h.loseDB()
			if c := h.claims(); len(c) != 0 {
				t.Errorf("claims: %q", c)
			}
			h.startPlugin()
			h.volctl("wait", "--plugin", "rec", "--timeout", "30s")
			h.register("data", "single-node-writer")
			h.exits(5, "was not made by this volume's staging", "volume", "claim", "data", "--alloc", "a", "--timeout", "2s")
			if out, code := h.inspect(); code != 1 || !strings.Contains(out, "2 findings") {
				t.Errorf("inspect: exit %d\n%s", code, out)
			}
			if h.mounts() != mounts {
				t.Errorf("mounts:\n%s", h.mounts())
			}
			for _, line := range slices.Backward(strings.Split(strings.TrimSpace(mounts), "\n")) {
				h.must(syscall.Unmount(strings.Fields(line)[4], 0))
			}
		})
	}
}

// TestManyOwned checks that the agent detaches all claims of an owner when this owner ends.
func TestManyOwned(t *testing.T) {
	const n = 100
	h := newRecorded(t, "10s", nil)
	s := newSleeper(t, "")
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "---\nid: v%d\nplugin_id: rec\nexternal_id: ext/%d\n", i, i)
	}
	file := filepath.Join(h.dir, "many.yaml")
	h.must(os.WriteFile(file, []byte(text.String()), 0o644))
	h.volctl("volume", "register", file)
	for i := range n {
		h.volctl("volume", "claim", fmt.Sprintf("v%d", i), "--alloc", "a", "--owner", s.owner(), "--no-wait")
	}
	h.await("all mounted", func() bool { return strings.Count(h.volctl("volume", "list"), " mounted ") == n })
	begun := time.Now()
	s.kill()
	h.await("all claims to go", func() bool { return len(h.claims()) == 0 })
	t.Logf("%d claims released after %s", n, time.Since(begun))
	h.await("all free", func() bool { return strings.Count(h.volctl("volume", "list"), " free ") == n })
	if n := h.notes(); len(n) != 0 {
		t.Errorf("notes: %q", n)
	}
}

// TestLazyThenKilled kills the agent after a lazy unmount and before the agent records this
// unmount. The next agent must not conclude from the missing mount that no process uses the volume.
func TestLazyThenKilled(t *testing.T) {
	t.Parallel()
	h := newApart(t, "1s", func(c *csitest.Config) { c.Attach = true })
	h.register("data", "single-node-writer")
	path := h.volctl("volume", "claim", "data", "--alloc", "a")
	newSleeper(t, path)
	h.lose()
	h.volctl("volume", "detach", "data", "a", "--no-wait")
	h.kill()
	h.must(syscall.Unmount(path, syscall.MNT_DETACH))
	mark := h.mark()
	h.start()
	h.exits(0, "unmounted lazily", "volume", "detach", "data", "a", "--without-plugin=lazy")
	h.startPlugin()
	h.await("the detach to be refused", func() bool {
		return strings.Contains(h.volctl("volume", "status", "data"), "nothing on this host tells whether it is still in use")
	})
	h.expect(mark, csitest.NodeUnpublish, csitest.NodeUnstage)
}

// TestInspectInDoubt checks that `inspect` explains a mount that a call with an unknown result
// made. The explanation comes from the volume's record or from the pending calls of a forced
// deregister.
func TestInspectInDoubt(t *testing.T) {
	t.Parallel()
	h := newApart(t, "10s", nil)
	h.register("data", "single-node-writer")
	s := newSleeper(t, "")
	h.fault(csitest.Fault{Method: csitest.NodePublish, Crash: csitest.AfterEffect})
	h.volctl("volume", "claim", "data", "--alloc", "a", "--owner", s.owner(), "--no-wait")
	path := filepath.Join(h.dir, "d/csi/rec/per-alloc/a/data")
	h.await("the plugin's end", func() bool { return strings.Contains(h.volctl("volume", "status", "data"), "NodePublishVolume") })
	says := func(words ...string) {
		t.Helper()
		out, code := h.inspect()
		for _, w := range append(words, path+"  in doubt (published for a)") {
			if code != 0 || !strings.Contains(out, w) {
				t.Errorf("exit %d, or it does not say %q:\n%s", code, w, out)
			}
		}
	}
	says(fmt.Sprintf("owner pid %d", s.pid()))
	h.volctl("volume", "detach", "data", "a", "--force", "--no-wait")
	h.volctl("volume", "deregister", "data", "-force", "-y")
	says(`leftover of volume "data"`, "pending call: "+path+" may still be mounted")
	h.killPlugin()
	h.startPlugin()
	h.await("the debt to be paid", func() bool { return h.mounts() == "" })
}

// TestOwnerEndsOnFullDisk ends an owner while the state disk is full. The agent retries the detach
// until it can store it, and logs the failure only once. Until then the volume does not change,
// even by requests with force or without the plugin.
func TestOwnerEndsOnFullDisk(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	s := newSleeper(t, "")
	for _, id := range []string{"one", "two"} {
		h.register(id, "single-node-writer")
		h.volctl("volume", "claim", id, "--alloc", "a", "--owner", s.owner())
	}
	mounts, mark := h.mounts(), h.mark()
	end := h.failing("pwrite64", "ENOSPC")
	s.kill()
	said := func(words string) int {
		raw, err := os.ReadFile(h.log.Name())
		h.must(err)
		return strings.Count(string(raw), words)
	}
	h.await("some tries", func() bool { return said("cannot detach a claim whose owner is gone") >= 6 })
	if n := said("cannot detach claims whose owners are gone"); n != 1 {
		t.Errorf("that is told %d times", n)
	}
	if r := h.try("volume", "detach", "one", "a", "--without-plugin"); r.code != 1 || !strings.Contains(r.err, "no space left") {
		t.Errorf("a release on a full disk: exit %d, %s", r.code, r.err)
	}
	if r := h.try("volume", "deregister", "two", "-force", "-y"); r.code != 1 || !strings.Contains(r.err, "no space left") {
		t.Errorf("a deregister on a full disk: exit %d, %s", r.code, r.err)
	}
	if got := h.claims(); len(got) != 2 || h.mounts() != mounts {
		t.Errorf("claims %q, mounts\n%s", got, h.mounts())
	}
	h.expect(mark)
	end()
	h.awaitFree("one")
	h.awaitFree("two")
	if n := h.notes(); len(n) != 0 || h.mounts() != "" {
		t.Errorf("notes %q, mounts\n%s", n, h.mounts())
	}
}

// TestShutdown stops the agent with SIGTERM and simulates a reboot. The agent mounts the claimed
// volume again at once, although it had given up an undo call. No leftover of the volume that was
// deregistered by force remains.
func TestShutdown(t *testing.T) {
	boot := fakeBoots(t)
	h := newApart(t, "2m", nil)
	for _, id := range []string{"kept", "given"} {
		h.register(id, "single-node-writer")
	}
	h.volctl("volume", "claim", "given", "--alloc", "a")
	h.volctl("volume", "claim", "kept", "--alloc", "a")
	mark := h.mark()
	h.fault(csitest.Fault{Method: csitest.NodeUnpublish, Volume: "ext/kept", Hang: true, Times: -1})
	h.volctl("volume", "detach", "kept", "a", "--no-wait")
	h.await("the call", func() bool { return h.calls(mark).Count(csitest.NodeUnpublish) == 1 })
	h.volctl("volume", "detach", "kept", "a", "--without-plugin=lazy")
	h.lose()
	h.must(h.cfg.Faults().Clear())
	h.volctl("volume", "claim", "kept", "--alloc", "b", "--no-wait")
	h.volctl("volume", "detach", "given", "a", "--no-wait")
	h.volctl("volume", "deregister", "given", "-force", "-y")
	h.must(h.signal(syscall.SIGTERM))
	h.unmountAll()
	boot(t)
	mark = h.mark()
	h.start()
	h.startPlugin()
	h.volctl("wait", "--volume", "kept", "--for", "mounted", "--timeout", "60s")
	if out := h.volctl("node", "status"); strings.Contains(out, "by force") {
		t.Errorf("node status says\n%s", out)
	}
	if n := h.calls(mark).Count(csitest.NodeUnpublish); n != 1 {
		t.Errorf("calls: %v", h.calls(mark).Methods())
	}
	h.volctl("volume", "detach", "kept", "b")
}
