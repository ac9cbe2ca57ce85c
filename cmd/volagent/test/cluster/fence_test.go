package cluster_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestTakeover loses host h1, which writes to an attached volume, while a claim on h2 waits for the volume.
// The plugin permits the proof by a detach. Host h2 gets the volume by itself, after
// ControllerUnpublishVolume for the CSI node id of h1 has succeeded. From then on, the SAN accepts no
// write of h1, and etcd none of its incarnation. Host h1 later returns: it has lost its claim, undoes its
// mounts without a controller call, registers, and can use the volume again. (I1, I3, I4)
func TestTakeover(t *testing.T) {
	for _, c := range []struct {
		name string
		lose func(*loss)
		back func(*loss)
	}{
		{"rebooted", (*loss).powerOff, (*loss).reboot},
		{"call in flight", (*loss).powerOffInCall, (*loss).reboot},
		{"paused", (*loss).pause, (*loss).resume},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := startLossWith(t, "fence: detach")
			c.lose(l)
			l.mark = 0
			path := l.expectTakeover("h1", shared.ProvenDetach)

			c.back(l)
			l.b.Await("the registration of h1", func() bool { return hostOf(l.b, "h1").Alive })
			l.b.MustRun("sh", "-c", `echo more >> "$1"`, "sh", filepath.Join(path, "owner"))
			l.expectLost()
			l.b.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
			l.reuse()
			l.expectNoLeftover()
		})
	}
}

// expectTakeover claims the volume on h2, and waits until the host has it. It asserts the order of the calls
// and the proof. It returns the path at which the volume is mounted.
func (l *loss) expectTakeover(host string, kind shared.ProofKind) string {
	l.t.Helper()
	return l.expectTaken(l.b.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "90s"), host, kind)
}

// expectTaken asserts that a claim on h2 has ended with a takeover of the volume, as expectTakeover does.
func (l *loss) expectTaken(got harness.Result, host string, kind shared.ProofKind) string {
	l.t.Helper()
	if got.Code != 0 {
		l.t.Fatalf("the claim on h2 ended with %d: %s", got.Code, got.Err)
	}
	path := strings.TrimSpace(got.Out)
	l.b.MustRun("sh", "-c", `echo h2 > "$1"`, "sh", filepath.Join(path, "owner"))
	l.expectOrder()

	p := l.proof(host)
	if len(p.Drops) != 1 || p.Drops[0].Volume != "db" || p.Drops[0].Kind != kind || p.Kind != kind {
		l.t.Errorf("the proof is %+v", p)
	}
	return path
}

// proof returns the only proof for a host.
func (l *loss) proof(host string) (p shared.Proof) {
	l.t.Helper()
	found := 0
	for _, kv := range l.keys() {
		if !strings.HasPrefix(kv.Key, shared.Proofs(host).Key) {
			continue
		}
		e, err := shared.Decode[shared.Proof](kv)
		l.b.Must(err)
		l.fenced, err = shared.ProvenIncarnation(kv.Key)
		l.b.Must(err)
		p = e.Value
		found++
	}
	if found != 1 {
		l.t.Errorf("the cluster has %d proofs for %s", found, host)
	}
	return p
}

// attachAndStage is the driver of most tests about lost hosts.
var attachAndStage = san.Config{Attach: true, Stage: true}
