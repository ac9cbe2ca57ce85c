package cluster_test

import (
	"strings"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// moveRig is a cluster in which host h1 uses the volume "db" for a process that lives.
type moveRig struct {
	*rig
	a, b, c *harness.Host
	user    *harness.Sleeper
	path    string // of the volume on h1
}

// newMoveRig starts three hosts.
func newMoveRig(t *testing.T) *moveRig {
	t.Helper()
	m := &moveRig{rig: newRig(t, 1, 3, san.Config{Attach: true, Stage: true})}
	m.a, m.b, m.c = m.hosts[0], m.hosts[1], m.hosts[2]
	m.share("db")
	m.use()
	return m
}

// use claims the volume on h1 for a new process.
func (m *moveRig) use() {
	m.t.Helper()
	m.user = harness.StartSleeper(m.t, "")
	m.path = claim(m.a, "db", "web", "--owner", m.user.Owner())
}

// awaitMove waits until the status of the volume says how its move stands.
func (m *moveRig) awaitMove(h *harness.Host, words ...string) {
	m.t.Helper()
	h.Await("the move to say "+strings.Join(words, ", "), func() bool {
		screen := h.Volctl("volume", "status", "db")
		for _, w := range words {
			if !strings.Contains(screen, w) {
				return false
			}
		}
		return true
	})
}

// awaitNoMove waits until etcd shows no move.
func (m *moveRig) awaitNoMove() {
	m.t.Helper()
	m.a.Await("the end of the move", func() bool { return !m.has(shared.MoveKey("db")) })
}

// expectUse claims and detaches the volume on a host.
func (m *moveRig) expectUse(h *harness.Host) {
	m.t.Helper()
	h.Must(write(h, claim(h, "db", "later", "--timeout", "60s"), "f", nameOf(h)))
	h.Volctl("volume", "detach", "db", "later")
}

// succeeded returns the output of a command in the background, which must succeed.
func succeeded(t *testing.T, what string, done <-chan harness.Result) string {
	t.Helper()
	r := <-done
	if r.Code != 0 {
		t.Fatalf("%s: exit %d\n%s%s", what, r.Code, r.Out, r.Err)
	}
	return strings.TrimSpace(r.Out)
}

// TestMove moves a volume that a process uses, while claims wait on two other hosts. Nothing is killed: the
// move names the process, and waits until it has ended. Then the target gets the volume, although the
// third host has waited for longer. (I1, I8)
func TestMove(t *testing.T) {
	t.Parallel()
	m := newMoveRig(t)
	m.a.Must(write(m.a, m.path, "f", "of h1"))
	third := m.c.StartVolctl("volume", "claim", "db", "--alloc", "third", "--timeout", "90s")
	m.awaitPending(m.c, "third")
	second := m.b.StartVolctl("volume", "claim", "db", "--alloc", "second", "--timeout", "90s")
	m.awaitPending(m.b, "second")

	moved := m.c.StartVolctl("volume", "move", "db", "h2", "--timeout", "60s")
	m.awaitMove(m.a, `moving to host "h2"`, `claim of "web"`, "sleep")
	m.a.ExpectRefusal(4, `being moved to host "h2"`, "volume", "move", "db", "h3")
	m.b.ExpectRefusal(4, `being moved to host "h2"`, "volume", "move", "db", "h2")
	m.a.ExpectRefusal(4, `being moved to host "h2"`, "volume", "claim", "db", "--alloc", "late", "--timeout", "1s")

	m.user.Kill()
	mustSay(t, "the move", succeeded(t, "the move", moved), `from host "h1" to host "h2"`)
	path := succeeded(t, "the claim on h2", second)
	if got := read(m.b, path, "f"); got != "of h1" {
		t.Errorf("the volume has %q", got)
	}
	m.awaitPending(m.c, "third")
	m.awaitNoMove()

	m.b.Volctl("volume", "detach", "db", "second")
	succeeded(t, "the claim on h3", third)
	m.c.Volctl("volume", "detach", "db", "third")
	m.awaitGone()
	m.expectFree("db")
}

// awaitPending waits until a host has a claim that is not mounted.
func (m *moveRig) awaitPending(h *harness.Host, alloc string) {
	m.t.Helper()
	h.Await("the claim of "+alloc, func() bool {
		return strings.Contains(h.Try("volume", "status", "db").Out, alloc) && !strings.Contains(h.Volctl("claim", "list"), "mounted")
	})
}

// TestMoveReserves moves a volume without a waiting claim. The volume is reserved for the target: another
// host waits, and gets it only after the target.
func TestMoveReserves(t *testing.T) {
	t.Parallel()
	m := newMoveRig(t)
	moved := m.a.StartVolctl("volume", "move", "db", "h2", "--timeout", "60s")
	m.awaitMove(m.a, `moving to host "h2"`, `claim of "web"`)
	m.user.Kill()
	mustSay(t, "the move", succeeded(t, "the move", moved), "reserved for a claim on host \"h2\" for 1m0s")
	third := m.c.StartVolctl("volume", "claim", "db", "--alloc", "third", "--timeout", "90s")
	m.c.Await("the claim to wait for the reservation", func() bool {
		return strings.Contains(m.c.Volctl("volume", "status", "db"), `reserved for host "h2"`)
	})
	m.a.Await("h1 to wait as every other host", func() bool {
		r := m.a.Try("volume", "claim", "db", "--alloc", "back", "--timeout", "1s")
		return r.Code == 5 && strings.Contains(r.Err, `reserved for host "h2"`)
	})

	m.expectUse(m.b)
	succeeded(t, "the claim on h3", third)
	m.c.Volctl("volume", "detach", "db", "third")
	m.awaitGone()
	m.expectFree("db")
}

// TestMoveRefused orders moves that cannot succeed. Each refusal says why, and changes nothing: also a
// claim without an owner stays, because another claim has a live owner.
func TestMoveRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 3, san.Config{Attach: true, Stage: true, MaxVolumes: 1, MultiWriter: true})
	a, b, c := r.hosts[0], r.hosts[1], r.hosts[2]
	r.share("db", mode("single-node-multi-writer"))
	r.share("other")
	move := func(code int, words string, args ...string) {
		t.Helper()
		a.ExpectRefusal(code, words, append([]string{"volume", "move", "db"}, args...)...)
		if r.has(shared.MoveKey("db")) {
			t.Errorf("etcd has a move after %v", args)
		}
	}

	move(4, "no host uses volume", "h2")
	user := harness.StartSleeper(t, "")
	claim(a, "db", "web", "--owner", user.Owner())
	path := claim(a, "db", "plain")
	a.ExpectRefusal(3, `no volume "nothing"`, "volume", "move", "nothing", "h2")
	move(3, `no host "h9"`, "h9")
	move(4, `host "h1" holds volume "db" already`, "h1")

	claim(b, "other", "web")
	move(4, `host "h2" refuses it: plugin "san" can have 1 volumes`, "h2")
	b.Volctl("volume", "detach", "other", "web")
	b.Volctl("plugin", "stop", "san")
	move(4, `host "h2" refuses it: its plugin "san" is not ready`, "h2")
	b.Volctl("plugin", "start", "san")
	c.Volctl("node", "drain", "--deadline", "20s")
	awaitState(a, "h3", "draining")
	move(4, `host "h3" is draining`, "h3")
	c.Volctl("node", "undrain")
	r.lose(c)
	move(4, `host "h3" is gone`, "h3")

	move(5, `it has the claim of "web"`, "h2", "--timeout", "2s")
	a.Must(write(a, path, "f", "x"))
	user.Kill()
	a.Volctl("volume", "detach", "db", "plain")
	b.Must(write(b, claim(b, "db", "web"), "f", "y"))
	r.lose(b)
	move(4, `host "h2" holds the volume, and is gone`, "h1")
	b.Start("san")
	c.Start("san")
	for _, h := range []*harness.Host{b, c} {
		h.Await("the registration", func() bool { return h.Try("volume", "status", "db").Code == 0 })
	}
	b.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
	r.awaitGone()
	r.expectFree("db")
}

// TestMoveCrash kills the agent of each party of a move that waits for a process. The move ends without a
// key, and every host can use the volume after that. A move that the target has accepted needs no mover. If the
// target is lost then, another host gets the volume. (I4, I10)
func TestMoveCrash(t *testing.T) {
	t.Parallel()
	m := newMoveRig(t)
	begin := func() <-chan harness.Result {
		t.Helper()
		moved := m.c.StartVolctl("volume", "move", "db", "h2", "--timeout", "90s")
		m.awaitMove(m.a, `moving to host "h2"`, `claim of "web"`)
		return moved
	}
	failed := func(done <-chan harness.Result, words string) {
		t.Helper()
		if r := <-done; r.Code == 0 || !strings.Contains(r.Err, words) {
			t.Errorf("the move ended with %d, and does not say %q: %s", r.Code, words, r.Err)
		}
	}

	moved := begin()
	m.crash(m.b)
	failed(moved, `the move has ended, because host "h2" is gone; host "h1" keeps the volume`)
	m.awaitNoMove()
	m.restart(m.b)

	moved = begin()
	m.crash(m.a)
	failed(moved, `host "h1", which holds the volume, is gone`)
	m.awaitNoMove()
	m.restart(m.a)

	moved = begin()
	m.crash(m.c)
	failed(moved, "")
	m.user.Kill()
	m.b.Await("the volume to be free for h2", func() bool { return strings.Contains(m.b.Volctl("volume", "status", "db"), `reserved for host "h2"`) })
	m.restart(m.c)
	third := m.c.StartVolctl("volume", "claim", "db", "--alloc", "third", "--timeout", "90s")
	m.awaitPending(m.c, "third")
	m.crash(m.b)
	succeeded(t, "the claim on h3", third)
	m.c.Volctl("volume", "detach", "db", "third")
	m.restart(m.b)
	for _, h := range []*harness.Host{m.b, m.a, m.c} {
		m.expectUse(h)
	}
	m.awaitGone()
	m.expectFree("db")
}

// restart starts the agent of a host again, and waits until the cluster has accepted it.
func (m *moveRig) restart(h *harness.Host) {
	m.t.Helper()
	h.Start("san")
	h.Await("the registration", func() bool { return h.Try("volume", "status", "db").Code == 0 })
}

// crash kills the agent of a host, and ends its lease.
func (m *moveRig) crash(h *harness.Host) {
	m.t.Helper()
	h.Kill()
	store := m.open()
	defer func() { _ = store.Close() }()

	page, err := store.Range(m.t.Context(), shared.Span{Key: shared.LiveKey(nameOf(h))}, 1, 0)
	h.Must(err)
	if len(page.KVs) == 1 {
		h.Must(store.Revoke(m.t.Context(), page.KVs[0].Lease))
	}
}

// TestDrainShared drains a host that uses shared volumes. It releases the volume that no process uses,
// also without an owner, and names the process that uses the other one. That volume is released when the
// process ends. Another host then gets both.
func TestDrainShared(t *testing.T) {
	t.Parallel()
	m := newMoveRig(t)
	m.share("free")
	claim(m.a, "free", "plain")

	r := m.a.ExpectExit(5, "claim", "node", "drain", "--deadline", "1s")
	mustSay(t, "the drain", r.Out, "db", "web", "sleep", "kill")
	m.b.Must(write(m.b, claim(m.b, "free", "plain"), "f", "x"))
	m.b.ExpectRefusal(5, `held by host "h1"`, "volume", "claim", "db", "--alloc", "next", "--timeout", "1s")
	mustSay(t, "the list of hosts", m.b.Volctl("node", "list"), "draining")

	m.user.Kill()
	mustSay(t, "the drain", m.a.Volctl("node", "drain", "--deadline", "30s"), "safe to power off")
	m.expectUse(m.b)
	m.b.Volctl("volume", "detach", "free", "plain")
	m.awaitGone()
	m.expectFree("db")
}
