package cluster_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// awaitState waits until the list of hosts on h shows a host in a state.
func awaitState(h *harness.Host, host, state string) {
	h.T.Helper()
	h.Await(host+" to be "+state, func() bool {
		for line := range strings.Lines(h.Volctl("node", "list")) {
			if strings.HasPrefix(line, host+" ") && strings.Contains(line, "  "+state) {
				return true
			}
		}
		return false
	})
}

// TestStates takes a host through all its states, and compares the list of another host. A draining
// host gives up its holds and gets no others, also after a restart of its agent. An agent that was
// stopped in order is away, and the next start ends that.
func TestStates(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, san.Config{Attach: true, Stage: true})
	a, b := r.hosts[0], r.hosts[1]
	r.share("db")
	r.share("other")
	awaitState(a, "h2", "ready")

	claim(b, "db", "web")
	b.Volctl("node", "drain", "--deadline", "20s")
	awaitState(a, "h2", "draining")
	r.awaitGone()
	r.expectFree("db")
	b.ExpectRefusal(4, "this host is draining", "volume", "claim", "other", "--alloc", "web", "--timeout", "1s")
	path := claim(a, "db", "web")
	a.Must(write(a, path, "f", "x"))
	a.Volctl("volume", "detach", "db", "web")

	b.Must(b.Signal(syscall.SIGTERM))
	awaitState(a, "h2", "away for 4m")
	b.Start("san")
	awaitState(a, "h2", "draining")
	b.ExpectRefusal(4, "this host is draining", "volume", "claim", "other", "--alloc", "web", "--timeout", "1s")
	b.Volctl("node", "undrain")
	awaitState(a, "h2", "ready")

	b.Must(b.Signal(syscall.SIGTERM))
	awaitState(a, "h2", "away for 4m")
	mustSay(t, "the status of an away host", a.Volctl("node", "status", "h2"), "away for 4m")
	b.Start("san")
	awaitState(a, "h2", "ready")
	claim(b, "other", "web")
	b.Volctl("volume", "detach", "other", "web")

	b.Kill()
	r.delete(shared.LiveKey("h2")) // as the end of the lease does
	awaitState(a, "h2", "gone")
	b.Start("san")
	awaitState(a, "h2", "ready")
}
