package claims_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// TestIDGivenAway checks a call that is still in progress for a volume after a forced deregister.
// The result of this call must not affect a new volume with the same volume id.
func TestIDGivenAway(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "4s", nil)
	h.RegisterAs("data", "ext/A")
	h.AddFaults(csitest.Fault{Method: csitest.NodeStage, Volume: "ext/A", Hang: true})
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--no-wait")
	h.Await("the call", func() bool { return h.Calls(0).Count(csitest.NodeStage) == 1 })
	h.Volctl("volume", "detach", "data", "a", "--no-wait")
	h.Volctl("volume", "deregister", "data", "-force", "-y")
	h.RegisterAs("data", "ext/B")
	r := h.Try("volume", "claim", "data", "--alloc", "a", "--timeout", "1s")
	if r.Code != 4 || !strings.Contains(r.Err, "deregistered by force") {
		t.Errorf("a claim on a path that is not free: exit %d, %s", r.Code, r.Err)
	}
	h.Must(h.Config.Faults().Clear())
	// The agent makes the pending calls once the storage is registered again.
	h.RegisterAs("old", "ext/A")
	h.Volctl("wait", "--volume", "old", "--for", "free", "--timeout", "60s")
	path := h.Volctl("volume", "claim", "data", "--alloc", "a")
	for _, c := range h.Calls(0).Only(csitest.NodePublish) {
		if c.Volume != "ext/B" || c.TargetPath != path {
			t.Errorf("published: %s", c)
		}
	}
}

// TestOneDirectory makes two claims with the same own directory at the same time. The agent must
// refuse one of them, and the directory must contain no leftover.
func TestOneDirectory(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("one", "single-node-writer")
	h.Register("two", "single-node-writer")
	at := filepath.Join(h.Dir, "at")
	h.Must(os.Mkdir(at, 0o755))
	for range 5 {
		var wg sync.WaitGroup
		codes := make([]int, 2)
		for i, id := range []string{"one", "two"} {
			wg.Go(func() { codes[i] = h.Try("volume", "claim", id, "--alloc", "a", "--at", at).Code })
		}
		wg.Wait()
		if codes[0]+codes[1] != 4 || codes[0] == codes[1] {
			t.Fatalf("exit codes %v, want a 0 and a 4", codes)
		}
		for _, id := range []string{"one", "two"} {
			h.Volctl("volume", "detach", id, "--all", "--ignore-not-found")
		}
		if left := h.Mounts(); left != "" {
			t.Fatalf("still mounted:\n%s", left)
		}
	}
}

// TestMountPoints checks which own directories the agent refuses, such as directories behind a
// symbolic link and the agent's own directories.
func TestMountPoints(t *testing.T) {
	h := harness.NewHost(t)
	h.Start("local")
	h.Volctl("volume", "create", "data", "--plugin", "local")
	link := filepath.Join(h.Dir, "link")
	h.Must(os.Symlink(filepath.Join(h.Dir, "d"), link))
	for at, code := range map[string]int{
		filepath.Join(link, "csi"):             1,
		filepath.Join(h.Dir, "agent.log"):      1,
		link:                                   1,
		filepath.Join(h.Dir, "run"):            2,
		filepath.Join(h.Dir, "run", "plugins"): 2,
		filepath.Join(h.Dir, "d", "csi"):       2,
		h.Dir:                                  2,
		"/":                                    2,
	} {
		if r := h.Try("volume", "claim", "data", "--at", at); r.Code != code {
			t.Errorf("%s: exit %d instead of %d: %s", at, r.Code, code, r.Err)
		}
		h.Volctl("wait", "--volume", "data", "--for", "free", "--timeout", "30s")
	}
	if left := h.Mounts(); left != "" {
		t.Errorf("mounted:\n%s", left)
	}
}

// TestSocketFile checks that the agent does not replace a regular file by its socket.
func TestSocketFile(t *testing.T) {
	h := harness.NewHost(t)
	h.Must(os.WriteFile(h.Socket(), []byte("mine"), 0o600))
	if out := h.StartFails(); !strings.Contains(out, "is not a socket") {
		t.Errorf("it said: %s", out)
	}
	if raw, err := os.ReadFile(h.Socket()); string(raw) != "mine" {
		t.Errorf("the file: %q, %v", raw, err)
	}
}

// TestSecretGone removes a secret before a detach. The detach works if its calls do not contain the
// secret. Otherwise the detach waits until the secret is back.
func TestSecretGone(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	secret := filepath.Join(h.Dir, "secret")
	h.Must(os.WriteFile(secret, []byte("x"), 0o600))
	file := filepath.Join(h.Dir, "data.yaml")
	h.Must(os.WriteFile(file, []byte("id: data\nplugin_id: rec\nexternal_id: x\nsecrets:\n  key: {file: "+secret+"}\n"), 0o644))
	h.Volctl("volume", "register", file)
	h.Volctl("volume", "claim", "data")
	h.Must(os.Rename(secret, secret+".away"))
	r := h.Try("volume", "detach", "data", "--timeout", "3s")
	if r.Code != 5 || !strings.Contains(r.Err, "cannot read secret") {
		t.Errorf("exit %d, %s", r.Code, r.Err)
	}
	h.ExpectNoMounts()
	h.Must(os.Rename(secret+".away", secret))
	h.Volctl("wait", "--volume", "data", "--for", "free", "--timeout", "30s") // the detach completes without another command
}

// TestTwoWait checks two requests that wait for the same claim. When the first request times out,
// the claim of the second request remains.
func TestTwoWait(t *testing.T) {
	h := harness.StartRecorded(t, "30s", nil)
	h.Register("data", "single-node-writer")
	h.AddFaults(csitest.Fault{Method: csitest.NodeStage, Hang: true})
	short := h.StartVolctl("volume", "claim", "data", "--timeout", "3s")
	h.Await("the call", func() bool { return h.Calls(0).Count(csitest.NodeStage) == 1 })
	long := h.StartVolctl("volume", "claim", "data", "--timeout", "60s")
	if r := <-short; r.Code != 5 {
		t.Errorf("the first: exit %d, %s", r.Code, r.Err)
	}
	h.Must(h.Config.Faults().Clear())
	if r := <-long; r.Code != 0 {
		t.Errorf("the second: exit %d, %s", r.Code, r.Err)
	}
}

// TestInterrupted checks that the agent withdraws a claim if the client that waits for it
// disconnects.
func TestInterrupted(t *testing.T) {
	h := harness.StartRecorded(t, "30s", nil)
	h.Register("data", "single-node-writer")
	h.AddFaults(csitest.Fault{Method: csitest.NodeStage, Hang: true})
	cmd := exec.Command(filepath.Join(harness.BinDir, "volctl"), "volume", "claim", "data")
	cmd.Env = h.Env
	h.Must(cmd.Start())
	h.Await("the call", func() bool { return h.Calls(0).Count(csitest.NodeStage) == 1 })
	h.Must(cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("volctl: %v", err)
	}
	h.Await("the withdrawal", func() bool { return strings.Contains(h.Volctl("claim", "list"), "unpublishing") })
	h.Must(h.Config.Faults().Clear())
	h.Volctl("wait", "--volume", "data", "--for", "free", "--timeout", "60s")
}
