package claims_test

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
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// drainHost drains the host with a deadline. It returns the answer, which lists the volumes and
// mounts that prevent the drain.
func drainHost(h *harness.Host, code int, deadline string) (d api.Drain) {
	h.T.Helper()
	r := h.ExpectExit(code, "", "node", "drain", "--deadline", deadline, "-o", "json")
	h.Must(json.Unmarshal([]byte(r.Out), &d))
	if d.Safe != (code == 0) || d.Safe != (len(d.Waiting)+len(d.Left) == 0) {
		h.T.Fatalf("exit %d, and %+v", code, d)
	}
	return d
}

// TestDrain checks that a drain refuses new claims and detaches claims without a living owner. The
// drain reports the remaining claims, and completes when the last of these claims has ended. After
// a kill, the restarted agent continues the drain.
func TestDrain(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	for _, id := range []string{"mine", "data", "free"} {
		h.Register(id, "single-node-writer")
	}
	h.Volctl("volume", "claim", "mine")
	s := harness.StartSleeper(t, "")
	path := h.Volctl("volume", "claim", "data", "--alloc", "web", "--owner", s.Owner())
	if screen := h.Volctl("node", "status"); !strings.Contains(screen, "not draining") {
		t.Errorf("node status before:\n%s", screen)
	}
	drainHost(h.Host, 5, "0")
	h.AwaitFree("mine")
	check := func(when string) {
		t.Helper()
		d := drainHost(h.Host, 5, "1s")
		if len(d.Left) != 0 || len(d.Waiting) != 1 || d.Waiting[0].Volume != "data" || d.Waiting[0].Alloc != "web" ||
			d.Waiting[0].Command != fmt.Sprintf("kill %d", s.PID()) || !strings.Contains(d.Waiting[0].Owner, "sleep") {
			t.Errorf("%s: %+v", when, d)
		}
		for _, args := range [][]string{{"free"}, {"mine", "--alloc", "x"}, {"data", "--alloc", "other"}, {"free", "--no-wait"}} {
			r := h.ExpectExit(4, "this host is draining", append([]string{"volume", "claim"}, args...)...)
			if !strings.Contains(r.Err, "hint: volctl node undrain") {
				t.Errorf("%s: %s", when, r.Err)
			}
		}
		if again := h.Volctl("volume", "claim", "data", "--alloc", "web", "--owner", s.Owner()); again != path {
			t.Errorf("%s: the claim that is there, again: %q", when, again)
		}
		if screen := h.Volctl("node", "status"); !strings.Contains(screen, "   draining\n") || !strings.Contains(screen, "1 claim held by a live owner") {
			t.Errorf("%s: node status:\n%s", when, screen)
		}
	}
	check("before")
	h.Kill()
	if text, _ := harness.Inspect(h.Host); !strings.Contains(text, "\ndraining  new claims are refused; volctl node undrain\n") {
		t.Errorf("with no agent:\n%s", text)
	}
	h.Start("rec")
	check("after a crash")
	h.Must(h.Signal(syscall.SIGTERM))
	h.Start("rec")
	h.Register("new", "single-node-writer") // a drain still allows registrations
	r := h.ExpectExit(5, "1 claim held by a live owner", "node", "drain", "--deadline", "100ms")
	if !strings.Contains(r.Err, "to be stopped by you:") || !strings.Contains(r.Out, fmt.Sprintf("→ kill %d", s.PID())) {
		t.Errorf("a person is told:\n%s%s", r.Out, r.Err)
	}
	done := h.StartVolctl("node", "drain")
	h.Await("the drain to wait", func() bool { return strings.Count(h.Volctl("events"), "node-draining") == 1 })
	s.Kill()
	if r := <-done; r.Code != 0 || r.Out != "safe to power off\n" {
		t.Errorf("the drain ended with %d\n%s%s", r.Code, r.Out, r.Err)
	}
	h.ExpectNoMounts()
	drainHost(h.Host, 0, "0")
	if screen := h.Volctl("node", "status"); !strings.Contains(screen, "safe to power off") {
		t.Errorf("node status:\n%s", screen)
	}
	h.ExpectExit(0, "claims are accepted again", "node", "undrain")
	h.ExpectExit(0, "nothing to do", "node", "undrain")
	h.Volctl("volume", "claim", "data")
	h.Volctl("volume", "detach", "data")
	if events := h.Volctl("events"); strings.Count(events, "node-draining") != 1 || strings.Count(events, "node-undrained") != 1 {
		t.Errorf("events:\n%s", events)
	}
}

// TestDrainPluginDown checks that a drain lists the volumes that wait for their plugin, each with
// the command that works without the plugin. While calls are pending, the host is not safe to power
// off.
func TestDrainPluginDown(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("a", "single-node-writer")
	h.Register("b", "single-node-writer")
	h.Volctl("volume", "claim", "a")
	h.Volctl("volume", "claim", "b")
	h.Volctl("plugin", "stop", "rec", "--force")
	d := drainHost(h.Host, 5, "2s")
	if len(d.Waiting) != 0 || len(d.Left) != 2 || d.Left[0].Volume != "a" || d.Left[1].Volume != "b" {
		t.Fatalf("got %+v", d)
	}
	for _, o := range d.Left {
		if !strings.Contains(o.Message, "plugin unavailable") || o.Command != "volctl plugin start rec" || o.Else != "volctl volume detach "+o.Volume+" manual --without-plugin=umount" {
			t.Errorf("got %+v", o)
		}
	}
	h.Volctl("volume", "detach", "a", "manual", "--without-plugin=umount")
	h.Volctl("volume", "deregister", "b", "-force", "-y")
	d = drainHost(h.Host, 5, "0")
	if len(d.Left) != 2 || !slices.ContainsFunc(d.Left, func(o api.Occupant) bool { return strings.Contains(o.Message, "pending calls") }) ||
		!slices.ContainsFunc(d.Left, func(o api.Occupant) bool { return strings.Contains(o.Else, "-force --forget") }) {
		t.Errorf("got %+v", d)
	}
	h.Volctl("plugin", "start", "rec")
	drainHost(h.Host, 0, "90s")
	h.ExpectNoMounts()
}

// TestDrainKilled kills the agent during a drain. The restarted agent must continue the drain, and
// the waiting command must continue too.
func TestDrainKilled(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "2s", nil)
	var ids []string
	for i := range 8 {
		ids = append(ids, fmt.Sprintf("v%d", i))
		h.Register(ids[i], "single-node-writer")
		h.Volctl("volume", "claim", ids[i])
	}
	h.AddFaults(csitest.Fault{Method: csitest.NodeUnpublish, Hang: true, Times: -1})
	done := h.StartVolctl("node", "drain")
	h.Await("the drain has begun", func() bool { return strings.Contains(h.Volctl("events"), "node-draining") })
	h.Kill()
	h.Must(h.Config.Faults().Clear())
	h.Start("rec")
	r := <-done
	if r.Code == 7 { // the agent was killed before its first answer
		r = h.Try("node", "drain", "--deadline", "90s")
	}
	if r.Code != 0 || r.Out != "safe to power off\n" {
		t.Errorf("the drain ended with %d\n%s%s", r.Code, r.Out, r.Err)
	}
	h.ExpectNoMounts()
}

// TestDrainHeld checks that a drain names the process that keeps a mount busy. While an unexplained
// mount exists, the host is not safe to power off.
func TestDrainHeld(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	path := h.Volctl("volume", "claim", "data")
	s := harness.StartSleeper(t, path)
	done := h.StartVolctl("node", "drain")
	h.Await("it is said who holds it", func() bool {
		d := drainHost(h.Host, 5, "0")
		return len(d.Left) == 1 && strings.Contains(d.Left[0].Message, fmt.Sprintf("pid %d sleep", s.PID()))
	})
	stray := filepath.Join(h.Dir, "d", "csi", "rec", "stray")
	h.Must(os.MkdirAll(stray, 0o755))
	h.Must(syscall.Mount("tmpfs", stray, "tmpfs", 0, ""))
	s.Kill()
	h.Await("the volume is gone", func() bool {
		d := drainHost(h.Host, 5, "0")
		return len(d.Left) == 1 && strings.Contains(d.Left[0].Message, "no record explains it") && d.Left[0].Command == "umount "+stray
	})
	h.Must(syscall.Unmount(stray, 0))
	if r := <-done; r.Code != 0 {
		t.Errorf("the drain ended with %d\n%s%s", r.Code, r.Out, r.Err)
	}
}

// TestDrainEnded checks a command that waits for a drain while another command undrains the host.
// The waiting command must report that the drain was ended.
func TestDrainEnded(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	h.Register("data", "single-node-writer")
	s := harness.StartSleeper(t, "")
	h.Volctl("volume", "claim", "data", "--owner", s.Owner())
	done := h.StartVolctl("node", "drain")
	h.Await("the drain has begun", func() bool { return strings.Contains(h.Volctl("events"), "node-draining") })
	time.Sleep(100 * time.Millisecond) // usually enough time for the command to wait for the drain
	h.Volctl("node", "undrain")
	// If undrain came before this wait began, the waiting command drains the host again. This
	// result is also correct.
	h.Await("the end of the drain", func() bool {
		select {
		case r := <-done:
			if r.Code != 4 || !strings.Contains(r.Err, "the drain was ended meanwhile") {
				t.Errorf("the drain ended with %d\n%s%s", r.Code, r.Out, r.Err)
			}
			return true
		default:
			h.Volctl("node", "undrain")
			return false
		}
	})
	h.Volctl("node", "undrain")
	h.Volctl("volume", "detach", "data", "--force")
}
