package cluster_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestFenceByPerson loses host h1, whose plugin permits no proof. The claim on h2 says so, and waits until
// two people state at the same time that h1 is switched off. Both get the first proof, and h1 is detached
// once. In the second case, the statement is wrong: h1 is only cut from the network, and still writes. The
// detach then cuts it off from the storage before h2 gets the volume. Host h1 comes back with the same boot
// id, and has lost its claim. (I1, I3, I4)
func TestFenceByPerson(t *testing.T) {
	for _, c := range []struct {
		name string
		lose func(*loss)
		back func(*loss)
	}{
		{"switched off", (*loss).powerOff, (*loss).reboot},
		{"wrong host", (*loss).partition, (*loss).heal},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := fencing{driver: attachAndStage}.start(t)
			l.expectFenceRefusals()
			c.lose(l)
			l.awaitGone()
			claimed := l.await()
			l.expectAnswer(`held by host "h1"`, `host "h1" is gone, and last reported a change 20`,
				`its plugin san has no "fence" on host "h1", so only a person can prove that the host is off`,
				"volctl node fence h1 --powered-off --reason TEXT", "volctl node replace h1 --reason TEXT -y")

			l.fenceTwice()
			path := l.expectTaken(<-claimed, "h1", shared.ProvenPerson)
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

// expectFenceRefusals asserts that the statement about a host is refused while the host is alive, and
// without its parts.
func (l *loss) expectFenceRefusals() {
	l.t.Helper()
	l.b.ExpectRefusal(4, `host "h1" is alive`, "node", "fence", "h1", "--powered-off", "--reason", lossReason)
	l.b.ExpectRefusal(4, `host "h2" is this host`, "node", "fence", "h2", "--powered-off", "--reason", lossReason)
	l.b.ExpectRefusal(3, `no host "h9"`, "node", "fence", "h9", "--powered-off", "--reason", lossReason)
	l.b.ExpectRefusal(2, "needs a reason", "node", "fence", "h1", "--powered-off")
	l.b.ExpectRefusal(2, "must be switched off first", "node", "fence", "h1", "--reason", lossReason)
	for _, kv := range l.keys() {
		if strings.HasPrefix(kv.Key, shared.Proofs("h1").Key) {
			l.t.Errorf("a refused statement has left %s", kv.Key)
		}
	}
}

// fenceTwice lets two people state at the same time that h1 is switched off, and then a third one. All see the
// same proof.
func (l *loss) fenceTwice() {
	l.t.Helper()
	one := l.b.StartVolctl("node", "fence", "h1", "--powered-off", "--reason", "seen in the rack", "-o", "json")
	two := l.c.StartVolctl("node", "fence", "h1", "--powered-off", "--reason", "heard it fall", "-o", "json")
	var said []api.FenceProof
	for _, done := range []<-chan harness.Result{one, two} {
		r := <-done
		if r.Code != 0 {
			l.t.Fatalf("the fencing ended with %d: %s", r.Code, r.Err)
		}
		var f api.Fenced
		l.b.Must(json.Unmarshal([]byte(r.Out), &f))
		said = append(said, f.Proof)
	}
	if said[0].Reason != said[1].Reason || said[0].Who != said[1].Who || !said[0].At.Equal(said[1].At) {
		l.t.Errorf("two people see the proofs %+v and %+v", said[0], said[1])
	}
	if again := l.fence(l.c); !strings.Contains(again, said[0].Reason) {
		l.t.Errorf("a third person does not see the reason %q:\n%s", said[0].Reason, again)
	}
	l.c.Await("the end of the attachment of h1", func() bool {
		return len(l.of(l.mark, func(e san.Event) bool { return e.Kind == san.KindDetach })) > 0
	})
	if calls := l.detached(); len(calls) != 1 {
		l.t.Errorf("host h1 was detached with %v", calls)
	}
}
