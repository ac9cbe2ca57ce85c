package claims_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// TestOwnerEnds checks that a claim ends with its owner process. The agent unmounts the volume
// within 5 s of the owner's end, with one CSI call of each kind. A second claim of the same process
// ends as well.
func TestOwnerEnds(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	h.Register("more", "single-node-writer")
	h.Register("kept", "single-node-writer")
	s := harness.StartSleeper(t, "")
	path := h.Volctl("volume", "claim", "data", "--alloc", "web", "--owner", s.Owner())
	h.Volctl("volume", "claim", "more", "--alloc", "web", "--owner", s.Owner())
	h.Volctl("volume", "claim", "kept", "--alloc", "web", "--owner", "none")
	if again := h.Volctl("volume", "claim", "data", "--alloc", "web", "--owner", s.Owner()); again != path {
		t.Errorf("the same again: %q, not %q", again, path)
	}
	if r := h.Try("volume", "claim", "data", "--alloc", "web", "--owner", "none"); r.Code != 4 || !strings.Contains(r.Err, "with another owner") {
		t.Errorf("the same with another owner: exit %d, %s", r.Code, r.Err)
	}
	want := fmt.Sprintf("pid %d sleep, running", s.PID())
	for _, screen := range []string{h.Volctl("volume", "status", "data"), h.Volctl("claim", "list")} {
		if !strings.Contains(screen, want) {
			t.Errorf("the screen does not say %q:\n%s", want, screen)
		}
	}
	mark := h.Mark()
	s.Kill()
	if took := h.AwaitFree("data"); took > harness.OwnerEndLimit {
		t.Errorf("it took %v", took)
	}
	h.AwaitFree("more")
	if calls := h.Calls(mark); calls.Count(csitest.NodeUnpublish) != 2 || calls.Count(csitest.NodeUnstage) != 2 || calls.Count(csitest.ControllerUnpublish) != 2 || len(calls) != 6 {
		t.Errorf("calls: %v", calls.Methods())
	}
	if got := h.Volctl("volume", "status", "kept", "-o", "go-template={{.state}}"); got != "mounted" {
		t.Errorf("the claim without an owner is %s", got)
	}
	if evs := h.Volctl("events", "--volume", "data", "-n", "50"); !strings.Contains(evs, "owner-gone") {
		t.Errorf("no event tells why:\n%s", evs)
	}
	if r := h.Try("volume", "claim", "data", "--alloc", "web", "--owner", s.Owner()); r.Code != 4 || !strings.Contains(r.Err, "no running process") {
		t.Errorf("a claim for a dead process: exit %d, %s", r.Code, r.Err)
	}
}

// TestOwnerEndsUnseen checks an owner that ends while no agent runs. The agent notices the end at
// its start and does not mount the volume again.
func TestOwnerEndsUnseen(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	h.Register("kept", "single-node-writer")
	dead, alive := harness.StartSleeper(t, ""), harness.StartSleeper(t, "")
	h.Volctl("volume", "claim", "data", "--alloc", "web", "--owner", dead.Owner())
	h.Volctl("volume", "claim", "kept", "--alloc", "db", "--owner", alive.Owner())
	h.Kill()
	dead.Kill()
	mark := h.Mark()
	h.Start("rec")
	if took := h.AwaitFree("data"); took > harness.OwnerEndLimit {
		t.Errorf("it took %v", took)
	}
	h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish)
	if got := h.Volctl("volume", "status", "kept"); !strings.Contains(got, fmt.Sprintf("pid %d sleep, running", alive.PID())) {
		t.Errorf("the claim of a process that lives:\n%s", got)
	}
	mark = h.Mark()
	alive.Kill()
	h.AwaitFree("kept") // the agent watches the owner again after the restart
	h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish)
}

// TestHolderLivesOrDies checks claims for a volume that another alloc, the holder, has already
// claimed. If the holder's owner is alive, the agent refuses the claim at once, and the error names
// the holder. If the owner is dead, the claim waits until the holder's claim is detached. The agent
// must do the same if the holder's own alloc claims the volume with a new owner.
func TestHolderLivesOrDies(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	s := harness.StartSleeper(t, "")
	h.Volctl("volume", "claim", "data", "--alloc", "db", "--owner", s.Owner())
	mark := h.Mark()
	begun := time.Now()
	r := h.Try("volume", "claim", "data", "--alloc", "web", "--timeout", "60s")
	if took := time.Since(begun); r.Code != 4 || took > 20*time.Second {
		t.Errorf("beside a live holder: exit %d after %v", r.Code, took)
	}
	for _, words := range []string{`"db"`, fmt.Sprintf("pid %d (sleep)", s.PID()), fmt.Sprintf("hint: end pid %d", s.PID())} {
		if !strings.Contains(r.Err, words) {
			t.Errorf("the refusal does not say %q: %s", words, r.Err)
		}
	}
	h.ExpectCalls(mark)
	h.AddFaults(csitest.Fault{Method: csitest.NodeUnpublish, Delay: time.Second})
	s.Kill()
	next := harness.StartSleeper(t, "")
	h.Volctl("volume", "claim", "data", "--alloc", "web", "--owner", next.Owner())
	h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish, csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish)

	// The same alloc claims the volume again with a new owner.
	h.AddFaults(csitest.Fault{Method: csitest.NodeUnpublish, Delay: time.Second})
	next.Kill()
	last := harness.StartSleeper(t, "")
	h.Volctl("volume", "claim", "data", "--alloc", "web", "--owner", last.Owner())
	if got := h.Volctl("volume", "status", "data"); !strings.Contains(got, fmt.Sprintf("pid %d sleep, running", last.PID())) {
		t.Errorf("the claim is not its new owner's:\n%s", got)
	}
	h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish, csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish,
		csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish, csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish)
}

// TestDetachOwned checks that only --force detaches a claim whose owner is alive.
func TestDetachOwned(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	s := harness.StartSleeper(t, "")
	h.Volctl("volume", "claim", "data", "--alloc", "web", "--owner", s.Owner())
	mark := h.Mark()
	for _, args := range [][]string{{"volume", "detach", "data"}, {"volume", "deregister", "data", "-force", "-y"}} {
		r := h.Try(args...)
		if r.Code != 4 || !strings.Contains(r.Err, `"web"`) || !strings.Contains(r.Err, fmt.Sprintf("pid %d", s.PID())) {
			t.Errorf("volctl %v: exit %d, %s", args, r.Code, r.Err)
		}
	}
	h.ExpectCalls(mark)
	h.Volctl("volume", "detach", "data", "--force")
	h.ExpectCalls(mark, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish)
	if s.Cmd.Process.Signal(syscall.Signal(0)) != nil {
		t.Error("the owner did not outlive its claim")
	}
}

// TestDropAfterOwner checks that a forced deregister removes the claim of an ended owner, even if
// the detach of this claim is stuck.
func TestDropAfterOwner(t *testing.T) {
	h := harness.StartRecorded(t, "2s", nil)
	h.Register("data", "single-node-writer")
	s := harness.StartSleeper(t, "")
	h.Volctl("volume", "claim", "data", "--alloc", "web", "--owner", s.Owner())
	h.AddFaults(csitest.Fault{Method: csitest.NodeUnpublish, Hang: true, Times: -1})
	s.Kill()
	h.Await("the owner's end to show", func() bool {
		return strings.Contains(h.Volctl("volume", "status", "data"), fmt.Sprintf("pid %d, gone", s.PID()))
	})
	if out := h.Volctl("volume", "deregister", "data", "-force", "-y"); !strings.Contains(out, "may still be mounted") {
		t.Errorf("it does not say what it leaves:\n%s", out)
	}
	h.Must(h.Config.Faults().Clear())
}

// TestDetachAndReaperAtOnce detaches a claim by a command while the reaper detaches it. The agent
// must make each CSI call only once.
func TestDetachAndReaperAtOnce(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-multi-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "other")
	for i := range 10 {
		s := harness.StartSleeper(t, "")
		h.Volctl("volume", "claim", "data", "--alloc", "web", "--owner", s.Owner())
		mark := h.Mark()
		done := h.StartVolctl("volume", "detach", "data", "web", "--force", "--ignore-not-found")
		time.Sleep(time.Duration(i) * 2 * time.Millisecond) // vary the order of command and reaper
		s.Kill()
		if r := <-done; r.Code != 0 {
			t.Fatalf("detach: exit %d, %s", r.Code, r.Err)
		}
		h.Await("the release", func() bool {
			return h.Volctl("claim", "list", "--volume", "data", "-q") == "data\tother"
		})
		h.ExpectCalls(mark, csitest.NodeUnpublish)
	}
}

// TestNewBoot checks the agent's first start in a new boot, when no volume is mounted. The agent
// detaches the claims whose owners are processes. These processes have ended, even if new processes
// have the same pids. The agent mounts the volumes of all other claims again.
func TestNewBoot(t *testing.T) {
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("mine", "single-node-writer")
	h.Register("data", "single-node-writer")
	s := harness.StartSleeper(t, "")
	at := filepath.Join(h.Dir, "at")
	h.Must(os.Mkdir(at, 0o755))
	path := h.Volctl("volume", "claim", "mine", "--alloc", "web", "--owner", s.Owner())
	h.Volctl("volume", "claim", "data", "--alloc", "db", "--at", at)
	pid := h.PluginPID("rec")
	h.Kill()
	h.Must(syscall.Kill(pid, syscall.SIGKILL))
	h.Await("the plugin's end", func() bool {
		state, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		return err != nil || strings.Contains(string(state), ") Z ")
	})
	harness.UnmountAll(h.Host)
	boot := filepath.Join(h.Dir, "boot_id")
	h.Must(os.WriteFile(boot, []byte("11111111-2222-3333-4444-555555555555\n"), 0o644))
	const kernels = "/proc/sys/kernel/random/boot_id"
	h.Must(syscall.Mount(boot, kernels, "", syscall.MS_BIND, ""))
	t.Cleanup(func() { h.Must(syscall.Unmount(kernels, 0)) })

	mark := h.Mark()
	h.Start("rec")
	h.AwaitFree("mine")
	h.Volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "60s")
	for _, c := range h.Calls(mark) {
		if undo := c.Method == csitest.NodeUnpublish || c.Method == csitest.NodeUnstage || c.Method == csitest.ControllerUnpublish; undo != (c.Volume == "ext/mine") {
			t.Errorf("a call that should not be: %s", c)
		}
	}
	if strings.Contains(h.Mounts(), " "+path+" ") || !strings.Contains(h.Mounts(), " "+at+" ") {
		t.Errorf("mounted are:\n%s", h.Mounts())
	}
	if err := s.Cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Fatal("the process that has the pid now is gone: ", err)
	}
	// A new claim in this boot ends when its owner process ends.
	h.Volctl("volume", "claim", "mine", "--alloc", "web", "--owner", s.Owner())
	s.Kill()
	h.AwaitFree("mine")
}
