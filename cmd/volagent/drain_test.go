package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/csitest"
)

// drained drains the host with a deadline. It returns the answer, which lists the volumes and
// mounts that prevent the drain.
func (h *host) drained(code int, deadline string) (d api.Drain) {
	h.t.Helper()
	r := h.exits(code, "", "node", "drain", "--deadline", deadline, "-o", "json")
	h.must(json.Unmarshal([]byte(r.out), &d))
	if d.Safe != (code == 0) || d.Safe != (len(d.Waiting)+len(d.Left) == 0) {
		h.t.Fatalf("exit %d, and %+v", code, d)
	}
	return d
}

// TestDrain checks that a drain refuses new claims and detaches claims without a living owner. The
// drain reports the remaining claims and ends when they have ended. After a kill, the restarted
// agent continues the drain.
func TestDrain(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	for _, id := range []string{"mine", "data", "free"} {
		h.register(id, "single-node-writer")
	}
	h.volctl("volume", "claim", "mine")
	s := newSleeper(t, "")
	path := h.volctl("volume", "claim", "data", "--alloc", "web", "--owner", s.owner())
	if screen := h.volctl("node", "status"); !strings.Contains(screen, "not draining") {
		t.Errorf("node status before:\n%s", screen)
	}
	h.drained(5, "0")
	h.awaitFree("mine")
	check := func(when string) {
		t.Helper()
		d := h.drained(5, "1s")
		if len(d.Left) != 0 || len(d.Waiting) != 1 || d.Waiting[0].Volume != "data" || d.Waiting[0].Alloc != "web" ||
			d.Waiting[0].Command != fmt.Sprintf("kill %d", s.pid()) || !strings.Contains(d.Waiting[0].Owner, "sleep") {
			t.Errorf("%s: %+v", when, d)
		}
		for _, args := range [][]string{{"free"}, {"mine", "--alloc", "x"}, {"data", "--alloc", "other"}, {"free", "--no-wait"}} {
			r := h.exits(4, "this host is draining", append([]string{"volume", "claim"}, args...)...)
			if !strings.Contains(r.err, "hint: volctl node undrain") {
				t.Errorf("%s: %s", when, r.err)
			}
		}
		if again := h.volctl("volume", "claim", "data", "--alloc", "web", "--owner", s.owner()); again != path {
			t.Errorf("%s: the claim that is there, again: %q", when, again)
		}
		if screen := h.volctl("node", "status"); !strings.Contains(screen, "   draining\n") || !strings.Contains(screen, "1 claim held by a live owner") {
			t.Errorf("%s: node status:\n%s", when, screen)
		}
	}
	check("before")
	h.kill()
	if text, _ := h.inspect(); !strings.Contains(text, "\ndraining  new claims are refused; volctl node undrain\n") {
		t.Errorf("with no agent:\n%s", text)
	}
	h.start("rec")
	check("after a crash")
	h.must(h.signal(syscall.SIGTERM))
	h.start("rec")
	h.register("new", "single-node-writer") // a drain still allows registrations
	r := h.exits(5, "1 claim held by a live owner", "node", "drain", "--deadline", "100ms")
	if !strings.Contains(r.err, "to be stopped by you:") || !strings.Contains(r.out, fmt.Sprintf("→ kill %d", s.pid())) {
		t.Errorf("a person is told:\n%s%s", r.out, r.err)
	}
	done := h.background("node", "drain")
	h.await("the drain to wait", func() bool { return strings.Count(h.volctl("events"), "node-draining") == 1 })
	s.kill()
	if r := <-done; r.code != 0 || r.out != "safe to power off\n" {
		t.Errorf("the drain ended with %d\n%s%s", r.code, r.out, r.err)
	}
	h.allGone()
	h.drained(0, "0")
	if screen := h.volctl("node", "status"); !strings.Contains(screen, "safe to power off") {
		t.Errorf("node status:\n%s", screen)
	}
	h.exits(0, "claims are accepted again", "node", "undrain")
	h.exits(0, "nothing to do", "node", "undrain")
	h.volctl("volume", "claim", "data")
	h.volctl("volume", "detach", "data")
	if events := h.volctl("events"); strings.Count(events, "node-draining") != 1 || strings.Count(events, "node-undrained") != 1 {
		t.Errorf("events:\n%s", events)
	}
}

// TestDrainPluginDown checks that a drain lists the volumes that wait for their plugin, each with
// the command that works without the plugin. While calls are pending, the host is not safe to power
// off.
func TestDrainPluginDown(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.register("a", "single-node-writer")
	h.register("b", "single-node-writer")
	h.volctl("volume", "claim", "a")
	h.volctl("volume", "claim", "b")
	h.volctl("plugin", "stop", "rec", "--force")
	d := h.drained(5, "2s")
	if len(d.Waiting) != 0 || len(d.Left) != 2 || d.Left[0].Volume != "a" || d.Left[1].Volume != "b" {
		t.Fatalf("got %+v", d)
	}
	for _, o := range d.Left {
		if !strings.Contains(o.Message, "plugin unavailable") || o.Command != "volctl plugin start rec" || o.Else != "volctl volume detach "+o.Volume+" manual --without-plugin=umount" {
			t.Errorf("got %+v", o)
		}
	}
	h.volctl("volume", "detach", "a", "manual", "--without-plugin=umount")
	h.volctl("volume", "deregister", "b", "-force", "-y")
	d = h.drained(5, "0")
	if len(d.Left) != 2 || !slices.ContainsFunc(d.Left, func(o api.Occupant) bool { return strings.Contains(o.Message, "pending calls") }) ||
		!slices.ContainsFunc(d.Left, func(o api.Occupant) bool { return strings.Contains(o.Else, "-force --forget") }) {
		t.Errorf("got %+v", d)
	}
	h.volctl("plugin", "start", "rec")
	h.drained(0, "90s")
	h.allGone()
}

// TestDrainKilled kills the agent during a drain. The restarted agent must continue the drain, and
// the waiting command must continue too.
func TestDrainKilled(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "2s", nil)
	var ids []string
	for i := range 8 {
		ids = append(ids, fmt.Sprintf("v%d", i))
		h.register(ids[i], "single-node-writer")
		h.volctl("volume", "claim", ids[i])
	}
	h.fault(csitest.Fault{Method: csitest.NodeUnpublish, Hang: true, Times: -1})
	done := h.background("node", "drain")
	h.await("the drain has begun", func() bool { return strings.Contains(h.volctl("events"), "node-draining") })
	h.kill()
	h.must(h.cfg.Faults().Clear())
	h.start("rec")
	r := <-done
	if r.code == 7 { // the agent was killed before its first answer
		r = h.try("node", "drain", "--deadline", "90s")
	}
	if r.code != 0 || r.out != "safe to power off\n" {
		t.Errorf("the drain ended with %d\n%s%s", r.code, r.out, r.err)
	}
	h.allGone()
}

// TestDrainHeld checks that a drain names the process that keeps a mount busy. While an unexplained
// mount exists, the host is not safe to power off.
func TestDrainHeld(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	path := h.volctl("volume", "claim", "data")
	s := newSleeper(t, path)
	done := h.background("node", "drain")
	h.await("it is said who holds it", func() bool {
		d := h.drained(5, "0")
		return len(d.Left) == 1 && strings.Contains(d.Left[0].Message, fmt.Sprintf("pid %d sleep", s.pid()))
	})
	stray := filepath.Join(h.dir, "d", "csi", "rec", "stray")
	h.must(os.MkdirAll(stray, 0o755))
	h.must(syscall.Mount("tmpfs", stray, "tmpfs", 0, ""))
	s.kill()
	h.await("the volume is gone", func() bool {
		d := h.drained(5, "0")
		return len(d.Left) == 1 && strings.Contains(d.Left[0].Message, "no record explains it") && d.Left[0].Command == "umount "+stray
	})
	h.must(syscall.Unmount(stray, 0))
	if r := <-done; r.code != 0 {
		t.Errorf("the drain ended with %d\n%s%s", r.code, r.out, r.err)
	}
}

// TestDrainEnded checks a command that waits for a drain while another command undrains the host.
// The waiting command must report this.
func TestDrainEnded(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	h.register("data", "single-node-writer")
	s := newSleeper(t, "")
	h.volctl("volume", "claim", "data", "--owner", s.owner())
	done := h.background("node", "drain")
	h.await("the drain has begun", func() bool { return strings.Contains(h.volctl("events"), "node-draining") })
	time.Sleep(100 * time.Millisecond) // in most cases the drain is waiting by then
	h.volctl("node", "undrain")
	// If undrain came before the wait, the waiting command drains the host again, which is correct
	// too.
	h.await("the end of the drain", func() bool {
		select {
		case r := <-done:
			if r.code != 4 || !strings.Contains(r.err, "the drain was ended meanwhile") {
				t.Errorf("the drain ended with %d\n%s%s", r.code, r.out, r.err)
			}
			return true
		default:
			h.volctl("node", "undrain")
			return false
		}
	})
	h.volctl("node", "undrain")
	h.volctl("volume", "detach", "data", "--force")
}
