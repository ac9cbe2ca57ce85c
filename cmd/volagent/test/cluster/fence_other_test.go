package cluster_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestFenceByOtherHost loses host h1. The elected host h3 cannot gather the proof itself: its plugin is stopped, or it
// has no fence hook. Host h2 detaches h1 for h3, or asks its own hook, and then gets the volume. (I1, I3)
func TestFenceByOtherHost(t *testing.T) {
	for _, c := range []struct {
		fencing
		kind shared.ProofKind
		by   string
	}{
		{fencing{driver: attachAndStage, plugin: []string{`"fence": "detach"`}}, shared.ProvenDetach, "h3"},
		{fencing{driver: attachAndStage, plugin: []string{`"fence": "hook"`}, hook: powerHook, hookOn: "h2"}, shared.ProvenHook, "h2"},
	} {
		t.Run(string(c.kind), func(t *testing.T) {
			t.Parallel()
			l := c.start(t)
			l.powerOff()
			l.b.Kill()
			l.c.Await("the election of h3", func() bool { return l.electedHost() == "h3" })
			if c.kind == shared.ProvenDetach {
				l.c.Volctl("plugin", "stop", "san")
			}
			l.b.Must(os.WriteFile(l.power("off"), nil, 0o600))
			l.b.Start("san")

			l.expectTaken(<-l.await(), "h1", c.kind)
			if p := l.proof("h1"); p.Drops[0].By != c.by {
				t.Errorf("the proof is %+v", p)
			}
			detached := l.of(0, func(e san.Event) bool { return e.Kind == san.KindDetach && e.Node == "csi-h1" })
			if len(detached) != 1 {
				t.Errorf("host h1 was detached with %v", detached)
			}
			l.expectSilence()
			l.expectNoKeys("calls/", "tasks/")
		})
	}
}

// electedHost returns the host that the cluster shows as elected, or an empty text.
func (l *loss) electedHost() string {
	l.t.Helper()
	for _, kv := range l.keys() {
		if kv.Key != shared.LeaderKey {
			continue
		}
		var leader struct{ Node string }
		l.b.Must(json.Unmarshal(kv.Value, &leader))
		return leader.Node
	}
	return ""
}

// TestFenceHookStopped loses host h1, and a hook that never ends is asked to switch it off. A person states that h1 is
// off. The hook and its child are killed at once, the cluster shows why, and the claim gets the volume. (I1, I3)
func TestFenceHookStopped(t *testing.T) {
	t.Parallel()
	const hangs = `[ "$1" = off ] || exit 1
sleep 1000 & echo "$$ $!" > POWER/new; mv POWER/new POWER/asked
wait
`
	l := fencing{driver: attachAndStage, plugin: []string{`"fence": "hook"`}, hook: hangs, patient: true}.start(t)
	l.powerOff()
	l.awaitGone()
	claimed := l.await()
	var pids []string
	l.b.Await("the call of the hook", func() bool {
		raw, err := os.ReadFile(l.power("asked"))
		pids = strings.Fields(string(raw))
		return err == nil && len(pids) == 2
	})
	mustSay(t, "the answer to the person", l.fence(l.c), "host h1 is fenced: person")
	l.b.Await("the end of the hook", func() bool {
		return !slices.ContainsFunc(pids, func(pid string) bool {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			return err == nil && !strings.Contains(string(stat), ") Z ")
		})
	})
	l.b.Await("the outcome in the status of h1", func() bool {
		return strings.Contains(l.c.Volctl("node", "status", "h1"), `cancelled: host "h1" is proven off already`)
	})
	l.expectTaken(<-claimed, "h1", shared.ProvenPerson)
	l.expectSilence()
}
