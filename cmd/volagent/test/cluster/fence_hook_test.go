package cluster_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/shared"
)

// powerHook is an honest fence hook. Its call ends when the test has switched the host off.
const powerHook = `case $1 in
off) echo "$2" > POWER/asked; until [ -e POWER/off ]; do sleep 0.05; done ;;
status) if [ -e POWER/off ]; then echo off; exit 2; fi ;;
on) rm -f POWER/off ;;
esac
`

// TestFenceByHook suspends the agent of host h1, whose process still writes. The cluster records that it
// asks the hook, and then the hook switches h1 off. Only after that, the claim on h2 gets the volume. (I1,
// I3, I4)
func TestFenceByHook(t *testing.T) {
	t.Parallel()
	l := fencing{driver: attachAndStage, plugin: []string{`"fence": "hook"`}, hook: powerHook}.start(t)
	l.pause()
	claimed := l.await()
	l.b.Await("the call of the hook", func() bool {
		raw, err := os.ReadFile(l.power("asked"))
		return err == nil && string(raw) == "h1\n"
	})
	if p := l.proof("h1"); len(p.Hooks) != 1 || p.Hooks[0].Name != "power" || p.Kind != "" {
		t.Errorf("while the hook runs, the proof is %+v", p)
	}
	if len(l.detached()) > 0 || len(claimed) > 0 {
		t.Error("host h1 loses the volume while it is on")
	}
	l.a.PowerOff()
	writes := len(l.san.Writes("disk-db"))
	l.b.Must(os.WriteFile(l.power("off"), nil, 0o600))
	path := l.expectTaken(<-claimed, "h1", shared.ProvenHook)
	if w := l.san.Writes("disk-db")[writes]; w.Node != "csi-h2" {
		t.Errorf("the next write came from %v", w)
	}
	mustSay(t, "the status of h1", l.c.Volctl("node", "status", "h1"), "hook power", "Taken over")

	l.reboot()
	l.b.Await("the registration of h1", func() bool { return hostOf(l.b, "h1").Alive })
	l.b.MustRun("sh", "-c", `echo more >> "$1"`, "sh", filepath.Join(path, "owner"))
	l.expectLost()
	l.b.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
	l.reuse()
	l.expectNoLeftover()
}

// TestFenceHookFails loses host h1. The fence hook does not prove that h1 is off, so the claim on h2
// waits, and its error says why. Then a person states that h1 is off. (I1, I3)
func TestFenceHookFails(t *testing.T) {
	for _, c := range []struct{ name, hook, words string }{
		{"hangs", "sleep 1000", "did not end within 5s, and was killed"},
		{"lies", "exit 0", "status says on"},
		{"missing", "", "this host has no fence hook in the fence directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := fencing{driver: attachAndStage, plugin: []string{`"fence": "hook"`}, hook: c.hook}.start(t)
			l.powerOff()
			l.awaitGone()
			claimed := l.await()
			l.expectAnswer(c.words, "volctl node fence h1 --powered-off --reason TEXT")
			if p := l.proofIfAny("h1"); p.Kind != "" || len(p.Drops) > 0 {
				t.Errorf("without a proof, the cluster has recorded %+v", p)
			}

			mustSay(t, "the answer to the person", l.fence(l.c), "host h1 is fenced: person", lossReason)
			l.expectTaken(<-claimed, "h1", shared.ProvenPerson)
			if p := l.proof("h1"); (len(p.Hooks) > 0) != (c.hook != "") {
				t.Errorf("the proof names the hooks %+v", p.Hooks)
			}
			l.expectSilence()
		})
	}
}

// proofIfAny returns the proof for a host, or an empty one.
func (l *loss) proofIfAny(host string) (p shared.Proof) {
	l.t.Helper()
	for _, kv := range l.keys() {
		if strings.HasPrefix(kv.Key, shared.Proofs(host).Key) {
			return l.proof(host)
		}
	}
	return p
}
