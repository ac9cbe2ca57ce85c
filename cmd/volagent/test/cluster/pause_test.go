package cluster_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/crasher"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestPause suspends the agent of a host for longer than its lease, and continues it. No other host
// gets its volume meanwhile, and the host keeps it. The lease says which host is alive, and
// gives no permission. (I1, I4)
func TestPause(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, san.Config{Attach: true, Stage: true})
	a, b := r.hosts[0], r.hosts[1]
	r.share("db", mode("single-node-multi-writer"))
	path := claim(a, "db", "web")
	a.Must(write(a, path, "f", "x"))

	harness.Freeze(a, a.Cmd.Process)
	r.awaitLeaseEnd("h1")
	a.Must(write(a, path, "f", "y")) // the user of the volume does not notice the pause
	refused(t, b.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "2s").Err, `held by host "h1"`)
	a.Must(a.Cmd.Process.Signal(syscall.SIGCONT))

	claim(a, "db", "two", "--timeout", "60s")
	refused(t, b.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "2s").Err, `held by host "h1"`)
	a.Must(write(a, path, "f", "z"))
	a.Volctl("volume", "detach", "db", "two")
	a.Volctl("volume", "detach", "db", "web")
	claim(b, "db", "web", "--timeout", "60s")
	b.Volctl("volume", "detach", "db", "web")
	r.awaitGone()
	r.expectFree("db")
}

// TestPauseInCall suspends the agent of a host after the transaction that announces a call, and before
// the call itself, for longer than its lease. No other host gets the volume or attaches it meanwhile.
// Another host may only take the call over, and detaches the paused host for that. The agent then
// continues, and the host has the volume. The same holds for the call that detaches the volume. (I1, I8,
// I11)
func TestPauseInCall(t *testing.T) {
	for _, c := range []struct{ name, point string }{
		{"attach", "before ControllerPublishVolume"},
		{"detach", "before ControllerUnpublishVolume"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			driver := san.Config{Attach: true, Stage: true}
			r := newRig(t, 1, 0, driver)
			orders := t.TempDir()
			a := r.prepare("h1", driver)
			r.hosts = append(r.hosts, a)
			launch(a, orders)
			b := r.start("h2", driver)
			r.hosts = append(r.hosts, b)
			r.share("db", mode("single-node-multi-writer"))

			var detached <-chan harness.Result
			a.Must(crasher.Order{Run: 1, Named: c.point, Stop: true}.Give(orders))
			claimed := a.StartVolctl("volume", "claim", "db", "--alloc", "web", "--timeout", "90s")
			if c.name == "detach" {
				expectDone(t, "the claim", claimed)
				detached = a.StartVolctl("volume", "detach", "db", "web", "--timeout", "90s")
			}
			a.Await("the pause", func() bool { return stopped(a) })
			r.awaitLeaseEnd("h1")
			refused(t, b.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "2s").Err, `host "h1"`)
			if calls := r.attachedBy("h2"); len(calls) > 0 {
				t.Errorf("host h2 attaches the volume: %v", calls)
			}
			a.Must(os.Remove(orders + "/order"))
			a.Must(a.Cmd.Process.Signal(syscall.SIGCONT))

			if c.name == "attach" {
				expectDone(t, "the claim", claimed)
				refused(t, b.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "2s").Err, `held by host "h1"`)
				detached = a.StartVolctl("volume", "detach", "db", "web", "--timeout", "90s")
			}
			expectDone(t, "the detach", detached)
			path := claim(b, "db", "web", "--timeout", "60s")
			b.Must(write(b, path, "f", "x"))
			b.Volctl("volume", "detach", "db", "web")
			r.awaitGone()
			r.expectFree("db")
		})
	}
}

// awaitLeaseEnd waits until etcd has ended the lease of a host.
func (r *rig) awaitLeaseEnd(name string) {
	r.t.Helper()
	r.hosts[0].Await("the end of the lease of "+name, func() bool {
		return !slices.ContainsFunc(r.keys(), func(kv shared.KV) bool { return kv.Key == shared.LiveKey(name) })
	})
}

// attachedBy returns the calls of a host that attach a volume.
func (r *rig) attachedBy(node string) (calls []san.Event) {
	for _, e := range r.san.Events() {
		if e.Kind == san.KindCall && e.Node == node && e.Method == "ControllerPublishVolume" {
			calls = append(calls, e)
		}
	}
	return calls
}

// stopped reports whether the agent of a host is suspended.
func stopped(h *harness.Host) bool {
	h.T.Helper()
	stat, err := os.ReadFile("/proc/" + pidOf(h) + "/stat")
	h.Must(err)
	return strings.Contains(string(stat), ") T ")
}

// expectDone waits for a command, which must succeed.
func expectDone(t *testing.T, what string, done <-chan harness.Result) {
	t.Helper()
	if r := <-done; r.Code != 0 {
		t.Errorf("%s ended with %d: %s", what, r.Code, r.Err)
	}
}

// pidOf returns the pid of the agent of a host.
func pidOf(h *harness.Host) string { return strconv.Itoa(h.Cmd.Process.Pid) }
