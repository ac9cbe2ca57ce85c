package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/csitest"
)

// soon is the time limit for the end of a claim after its owner has ended. The agent promises 5 s,
// but this host may be busy. The limit is less than 30 s, so that the reaper's periodic check
// cannot hide a missed event.
const soon = 20 * time.Second

// awaitFree waits until a volume is free. It returns the time that it waited.
func (h recorded) awaitFree(id string) time.Duration {
	h.t.Helper()
	begun := time.Now()
	h.volctl("wait", "--volume", id, "--for", "free", "--timeout", "60s")
	return time.Since(begun)
}

// TestOwnerEnds checks that a claim ends with its owner process. The agent unmounts the volume
// within 5 s of the owner's end, with one CSI call of each kind. A second claim of the same process
// ends as well.
func TestOwnerEnds(t *testing.T) {
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	h.register("more", "single-node-writer")
	h.register("kept", "single-node-writer")
	s := newSleeper(t, "")
	path := h.volctl("volume", "claim", "data", "--alloc", "web", "--owner", s.owner())
	h.volctl("volume", "claim", "more", "--alloc", "web", "--owner", s.owner())
	h.volctl("volume", "claim", "kept", "--alloc", "web", "--owner", "none")
	if again := h.volctl("volume", "claim", "data", "--alloc", "web", "--owner", s.owner()); again != path {
		t.Errorf("the same again: %q, not %q", again, path)
	}
	if r := h.try("volume", "claim", "data", "--alloc", "web", "--owner", "none"); r.code != 4 || !strings.Contains(r.err, "with another owner") {
		t.Errorf("the same with another owner: exit %d, %s", r.code, r.err)
	}
	want := fmt.Sprintf("pid %d sleep, running", s.pid())
	for _, screen := range []string{h.volctl("volume", "status", "data"), h.volctl("claim", "list")} {
		if !strings.Contains(screen, want) {
			t.Errorf("the screen does not say %q:\n%s", want, screen)
		}
	}
	mark := h.mark()
	s.kill()
	if took := h.awaitFree("data"); took > soon {
		t.Errorf("it took %v", took)
	}
	h.awaitFree("more")
	if calls := h.calls(mark); calls.Count(csitest.NodeUnpublish) != 2 || calls.Count(csitest.NodeUnstage) != 2 || calls.Count(csitest.ControllerUnpublish) != 2 || len(calls) != 6 {
		t.Errorf("calls: %v", calls.Methods())
	}
	if got := h.volctl("volume", "status", "kept", "-o", "go-template={{.state}}"); got != "mounted" {
		t.Errorf("the claim without an owner is %s", got)
	}
	if evs := h.volctl("events", "--volume", "data", "-n", "50"); !strings.Contains(evs, "owner-gone") {
		t.Errorf("no event tells why:\n%s", evs)
	}
	if r := h.try("volume", "claim", "data", "--alloc", "web", "--owner", s.owner()); r.code != 4 || !strings.Contains(r.err, "no running process") {
		t.Errorf("a claim for a dead process: exit %d, %s", r.code, r.err)
	}
}

// TestOwnerEndsUnseen checks an owner that ends while no agent runs. The agent notices the end at
// its start and does not mount the volume again.
func TestOwnerEndsUnseen(t *testing.T) {
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	h.register("kept", "single-node-writer")
	dead, alive := newSleeper(t, ""), newSleeper(t, "")
	h.volctl("volume", "claim", "data", "--alloc", "web", "--owner", dead.owner())
	h.volctl("volume", "claim", "kept", "--alloc", "db", "--owner", alive.owner())
	h.kill()
	dead.kill()
	mark := h.mark()
	h.start("rec")
	if took := h.awaitFree("data"); took > soon {
		t.Errorf("it took %v", took)
	}
	h.expect(mark, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish)
	if got := h.volctl("volume", "status", "kept"); !strings.Contains(got, fmt.Sprintf("pid %d sleep, running", alive.pid())) {
		t.Errorf("the claim of a process that lives:\n%s", got)
	}
	mark = h.mark()
	alive.kill()
	h.awaitFree("kept") // the agent watches the owner again after the restart
	h.expect(mark, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish)
}

// TestHolderLivesOrDies checks claims for a volume that another alloc has already claimed. If the
// holder is alive, the agent refuses the claim at once, and the error names the holder. If the
// holder is dead, the claim waits until the holder's claim is detached. The same alloc with another
// owner must behave in the same way.
func TestHolderLivesOrDies(t *testing.T) {
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	s := newSleeper(t, "")
	h.volctl("volume", "claim", "data", "--alloc", "db", "--owner", s.owner())
	mark := h.mark()
	begun := time.Now()
	r := h.try("volume", "claim", "data", "--alloc", "web", "--timeout", "60s")
	if took := time.Since(begun); r.code != 4 || took > 20*time.Second {
		t.Errorf("beside a live holder: exit %d after %v", r.code, took)
	}
	for _, words := range []string{`"db"`, fmt.Sprintf("pid %d (sleep)", s.pid()), fmt.Sprintf("hint: end pid %d", s.pid())} {
		if !strings.Contains(r.err, words) {
			t.Errorf("the refusal does not say %q: %s", words, r.err)
		}
	}
	h.expect(mark)
	h.fault(csitest.Fault{Method: csitest.NodeUnpublish, Delay: time.Second})
	s.kill()
	next := newSleeper(t, "")
	h.volctl("volume", "claim", "data", "--alloc", "web", "--owner", next.owner())
	h.expect(mark, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish, csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish)

	// The same alloc claims the volume again with a new owner.
	h.fault(csitest.Fault{Method: csitest.NodeUnpublish, Delay: time.Second})
	next.kill()
	last := newSleeper(t, "")
	h.volctl("volume", "claim", "data", "--alloc", "web", "--owner", last.owner())
	if got := h.volctl("volume", "status", "data"); !strings.Contains(got, fmt.Sprintf("pid %d sleep, running", last.pid())) {
		t.Errorf("the claim is not its new owner's:\n%s", got)
	}
	h.expect(mark, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish, csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish,
		csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish, csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish)
}

// TestDetachOwned checks that only --force detaches a claim whose owner is alive.
func TestDetachOwned(t *testing.T) {
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	s := newSleeper(t, "")
	h.volctl("volume", "claim", "data", "--alloc", "web", "--owner", s.owner())
	mark := h.mark()
	for _, args := range [][]string{{"volume", "detach", "data"}, {"volume", "deregister", "data", "-force", "-y"}} {
		r := h.try(args...)
		if r.code != 4 || !strings.Contains(r.err, `"web"`) || !strings.Contains(r.err, fmt.Sprintf("pid %d", s.pid())) {
			t.Errorf("volctl %v: exit %d, %s", args, r.code, r.err)
		}
	}
	h.expect(mark)
	h.volctl("volume", "detach", "data", "--force")
	h.expect(mark, csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish)
	if s.cmd.Process.Signal(syscall.Signal(0)) != nil {
		t.Error("the owner did not outlive its claim")
	}
}

// TestDropAfterOwner checks that a forced deregister removes the claim of an ended owner, even if
// the detach of this claim is stuck.
func TestDropAfterOwner(t *testing.T) {
	h := newRecorded(t, "2s", nil)
	h.register("data", "single-node-writer")
	s := newSleeper(t, "")
	h.volctl("volume", "claim", "data", "--alloc", "web", "--owner", s.owner())
	h.fault(csitest.Fault{Method: csitest.NodeUnpublish, Hang: true, Times: -1})
	s.kill()
	h.await("the owner's end to show", func() bool {
		return strings.Contains(h.volctl("volume", "status", "data"), fmt.Sprintf("pid %d, gone", s.pid()))
	})
	if out := h.volctl("volume", "deregister", "data", "-force", "-y"); !strings.Contains(out, "may still be mounted") {
		t.Errorf("it does not say what it leaves:\n%s", out)
	}
	h.must(h.cfg.Faults().Clear())
}

// TestDetachAndReaperAtOnce detaches a claim by a command while the reaper detaches it. The agent
// must make each CSI call only once.
func TestDetachAndReaperAtOnce(t *testing.T) {
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-multi-writer")
	h.volctl("volume", "claim", "data", "--alloc", "other")
	for i := range 10 {
		s := newSleeper(t, "")
		h.volctl("volume", "claim", "data", "--alloc", "web", "--owner", s.owner())
		mark := h.mark()
		done := h.background("volume", "detach", "data", "web", "--force", "--ignore-not-found")
		time.Sleep(time.Duration(i) * 2 * time.Millisecond) // vary the order of command and reaper
		s.kill()
		if r := <-done; r.code != 0 {
			t.Fatalf("detach: exit %d, %s", r.code, r.err)
		}
		h.await("the release", func() bool {
			return h.volctl("claim", "list", "--volume", "data", "-q") == "data\tother"
		})
		h.expect(mark, csitest.NodeUnpublish)
	}
}

// TestNewBoot checks the agent's first start in a new boot, when no volume is mounted. The agent
// detaches the claims of processes, because these processes have ended, even if other processes
// have the same pids. The agent mounts the volumes of all other claims again.
func TestNewBoot(t *testing.T) {
	h := newRecorded(t, "10s", nil)
	h.register("mine", "single-node-writer")
	h.register("data", "single-node-writer")
	s := newSleeper(t, "")
	at := filepath.Join(h.dir, "at")
	h.must(os.Mkdir(at, 0o755))
	path := h.volctl("volume", "claim", "mine", "--alloc", "web", "--owner", s.owner())
	h.volctl("volume", "claim", "data", "--alloc", "db", "--at", at)
	pid := h.pluginPID("rec")
	h.kill()
	h.must(syscall.Kill(pid, syscall.SIGKILL))
	h.await("the plugin's end", func() bool {
		state, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		return err != nil || strings.Contains(string(state), ") Z ")
	})
	h.unmountAll()
	boot := filepath.Join(h.dir, "boot_id")
	h.must(os.WriteFile(boot, []byte("11111111-2222-3333-4444-555555555555\n"), 0o644))
	const kernels = "/proc/sys/kernel/random/boot_id"
	h.must(syscall.Mount(boot, kernels, "", syscall.MS_BIND, ""))
	t.Cleanup(func() { h.must(syscall.Unmount(kernels, 0)) })

	mark := h.mark()
	h.start("rec")
	h.awaitFree("mine")
	h.volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "60s")
	for _, c := range h.calls(mark) {
		if undo := c.Method == csitest.NodeUnpublish || c.Method == csitest.NodeUnstage || c.Method == csitest.ControllerUnpublish; undo != (c.Volume == "ext/mine") {
			t.Errorf("a call that should not be: %s", c)
		}
	}
	if strings.Contains(h.mounts(), " "+path+" ") || !strings.Contains(h.mounts(), " "+at+" ") {
		t.Errorf("mounted are:\n%s", h.mounts())
	}
	if err := s.cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Fatal("the process that has the pid now is gone: ", err)
	}
	// A new claim in this boot ends with its process.
	h.volctl("volume", "claim", "mine", "--alloc", "web", "--owner", s.owner())
	s.kill()
	h.awaitFree("mine")
}
