package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/volagent/volagent/volmgr/csitest"
)

// background runs volctl in the background. It returns a channel that receives the result.
func (h *host) background(args ...string) <-chan result {
	done := make(chan result, 1)
	go func() { done <- h.try(args...) }()
	return done
}

// registerAs registers storage with the given external id under a volume id.
func (h recorded) registerAs(id, external string) result {
	h.t.Helper()
	file := filepath.Join(h.dir, id+".yaml")
	h.must(os.WriteFile(file, []byte("id: "+id+"\nplugin_id: rec\nexternal_id: "+external+"\n"), 0o644))
	return h.try("volume", "register", file)
}

// TestIDGivenAway checks a call that is still in progress for a volume after a forced deregister.
// The result of this call must not affect a new volume with the same volume id.
func TestIDGivenAway(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "4s", nil)
	h.registerAs("data", "ext/A")
	h.fault(csitest.Fault{Method: csitest.NodeStage, Volume: "ext/A", Hang: true})
	h.volctl("volume", "claim", "data", "--alloc", "a", "--no-wait")
	h.await("the call", func() bool { return h.calls(0).Count(csitest.NodeStage) == 1 })
	h.volctl("volume", "detach", "data", "a", "--no-wait")
	h.volctl("volume", "deregister", "data", "-force", "-y")
	h.registerAs("data", "ext/B")
	r := h.try("volume", "claim", "data", "--alloc", "a", "--timeout", "1s")
	if r.code != 4 || !strings.Contains(r.err, "deregistered by force") {
		t.Errorf("a claim on a path that is not free: exit %d, %s", r.code, r.err)
	}
	h.must(h.cfg.Faults().Clear())
	// The agent makes the pending calls once the storage is registered again.
	h.registerAs("old", "ext/A")
	h.volctl("wait", "--volume", "old", "--for", "free", "--timeout", "60s")
	path := h.volctl("volume", "claim", "data", "--alloc", "a")
	for _, c := range h.calls(0).Only(csitest.NodePublish) {
		if c.Volume != "ext/B" || c.TargetPath != path {
			t.Errorf("published: %s", c)
		}
	}
}

// TestOneDirectory makes two claims with the same own directory at the same time. The agent must
// refuse one of them, and the directory must contain no leftover.
func TestOneDirectory(t *testing.T) {
	h := newRecorded(t, "10s", nil)
	h.register("one", "single-node-writer")
	h.register("two", "single-node-writer")
	at := filepath.Join(h.dir, "at")
	h.must(os.Mkdir(at, 0o755))
	for range 5 {
		var wg sync.WaitGroup
		codes := make([]int, 2)
		for i, id := range []string{"one", "two"} {
			wg.Go(func() { codes[i] = h.try("volume", "claim", id, "--alloc", "a", "--at", at).code })
		}
		wg.Wait()
		if codes[0]+codes[1] != 4 || codes[0] == codes[1] {
			t.Fatalf("exit codes %v, want a 0 and a 4", codes)
		}
		for _, id := range []string{"one", "two"} {
			h.volctl("volume", "detach", id, "--all", "--ignore-not-found")
		}
		if left := h.mounts(); left != "" {
			t.Fatalf("still mounted:\n%s", left)
		}
	}
}

// TestMountPoints checks which own directories the agent refuses, such as directories behind a
// symbolic link and the agent's own directories.
func TestMountPoints(t *testing.T) {
	h := newHost(t)
	h.start("local")
	h.volctl("volume", "create", "data", "--plugin", "local")
	link := filepath.Join(h.dir, "link")
	h.must(os.Symlink(filepath.Join(h.dir, "d"), link))
	for at, code := range map[string]int{
		filepath.Join(link, "csi"):             1,
		filepath.Join(h.dir, "agent.log"):      1,
		link:                                   1,
		filepath.Join(h.dir, "run"):            2,
		filepath.Join(h.dir, "run", "plugins"): 2,
		filepath.Join(h.dir, "d", "csi"):       2,
		h.dir:                                  2,
		"/":                                    2,
	} {
		if r := h.try("volume", "claim", "data", "--at", at); r.code != code {
			t.Errorf("%s: exit %d instead of %d: %s", at, r.code, code, r.err)
		}
		h.volctl("wait", "--volume", "data", "--for", "free", "--timeout", "30s")
	}
	if left := h.mounts(); left != "" {
		t.Errorf("mounted:\n%s", left)
	}
}

// TestSocketFile checks that the agent does not replace a regular file by its socket.
func TestSocketFile(t *testing.T) {
	h := newHost(t)
	h.must(os.WriteFile(h.socket(), []byte("mine"), 0o600))
	if out := h.refuse(); !strings.Contains(out, "is not a socket") {
		t.Errorf("it said: %s", out)
	}
	if raw, err := os.ReadFile(h.socket()); string(raw) != "mine" {
		t.Errorf("the file: %q, %v", raw, err)
	}
}

// TestSecretGone removes a secret before a detach. The detach works if its calls do not contain the
// secret. Otherwise it waits until the secret is back.
func TestSecretGone(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	secret := filepath.Join(h.dir, "secret")
	h.must(os.WriteFile(secret, []byte("x"), 0o600))
	file := filepath.Join(h.dir, "data.yaml")
	h.must(os.WriteFile(file, []byte("id: data\nplugin_id: rec\nexternal_id: x\nsecrets:\n  key: {file: "+secret+"}\n"), 0o644))
	h.volctl("volume", "register", file)
	h.volctl("volume", "claim", "data")
	h.must(os.Rename(secret, secret+".away"))
	r := h.try("volume", "detach", "data", "--timeout", "3s")
	if r.code != 5 || !strings.Contains(r.err, "cannot read secret") {
		t.Errorf("exit %d, %s", r.code, r.err)
	}
	h.allGone()
	h.must(os.Rename(secret+".away", secret))
	h.volctl("wait", "--volume", "data", "--for", "free", "--timeout", "30s") // the detach completes without another command
}

// TestTwoWait checks two requests that wait for the same claim. When the first request times out,
// the claim of the second request remains.
func TestTwoWait(t *testing.T) {
	h := newRecorded(t, "30s", nil)
	h.register("data", "single-node-writer")
	h.fault(csitest.Fault{Method: csitest.NodeStage, Hang: true})
	short := h.background("volume", "claim", "data", "--timeout", "3s")
	h.await("the call", func() bool { return h.calls(0).Count(csitest.NodeStage) == 1 })
	long := h.background("volume", "claim", "data", "--timeout", "60s")
	if r := <-short; r.code != 5 {
		t.Errorf("the first: exit %d, %s", r.code, r.err)
	}
	h.must(h.cfg.Faults().Clear())
	if r := <-long; r.code != 0 {
		t.Errorf("the second: exit %d, %s", r.code, r.err)
	}
}

// TestInterrupted checks that the agent withdraws a claim if the client that waits for it
// disconnects.
func TestInterrupted(t *testing.T) {
	h := newRecorded(t, "30s", nil)
	h.register("data", "single-node-writer")
	h.fault(csitest.Fault{Method: csitest.NodeStage, Hang: true})
	cmd := exec.Command(filepath.Join(binDir, "volctl"), "volume", "claim", "data")
	cmd.Env = h.env
	h.must(cmd.Start())
	h.await("the call", func() bool { return h.calls(0).Count(csitest.NodeStage) == 1 })
	h.must(cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("volctl: %v", err)
	}
	h.await("the withdrawal", func() bool { return strings.Contains(h.volctl("claim", "list"), "unpublishing") })
	h.must(h.cfg.Faults().Clear())
	h.volctl("wait", "--volume", "data", "--for", "free", "--timeout", "60s")
}
