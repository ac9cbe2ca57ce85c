package shared_test

import (
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestAbsence checks which words and which remedy an absence adds to the error of a waiting host.
func TestAbsence(t *testing.T) {
	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	since, told := now.Add(-time.Hour), now.Add(-time.Minute)
	ready := shared.Node{State: shared.NodeReady, Since: since}
	for name, row := range map[string]struct {
		node, live, told, wanted any
		want                     string // empty if the error stays as it is
	}{
		"alive":           {node: ready, live: shared.Live{}},
		"not a host":      {},
		"gone":            {node: ready, told: shared.Status{At: told}, want: `; host "x" is gone, and last reported a change 2026-05-04T03:01:01Z (1m0s)`},
		"without status":  {node: ready, want: `; host "x" is gone, and last reported a change 2026-05-04T02:02:01Z (1h0m0s)`},
		"answered":        {node: ready, wanted: shared.Wanted{Answer: "its plugin p has no fence"}, want: `; host "x" is gone, and last reported a change 2026-05-04T02:02:01Z (1h0m0s); its plugin p has no fence`},
		"stopped cleanly": {node: shared.Node{State: shared.NodeAway, Since: told, Until: now.Add(1)}, want: `; host "x" is away, and last reported a change 2026-05-04T03:01:01Z (1m0s)`},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := shared.ParseAbsence("me", "x", "v", [][]shared.KV{
				kv(t, shared.NodeKey("x"), row.node), kv(t, shared.LiveKey("x"), row.live), kv(t, shared.StatusKey("x"), row.told), kv(t, shared.WantedKey("v", "me"), row.wanted),
			})
			if err != nil {
				t.Fatal(err)
			}
			shows, returns := remedy.Of(remedy.ShowVolume, "v"), remedy.Of(remedy.ReturnOrReplace, "x")
			held := &volume.CallError{Message: "held", Remedy: shows}
			a.Explain(held, now)
			if got := strings.TrimPrefix(held.Message, "held"); got != row.want {
				t.Errorf("the error says %q, want %q", got, row.want)
			}
			if explained := held.Remedy.Equal(returns); explained != (row.want != "") {
				t.Errorf("the remedy is %+v", held.Remedy)
			}
		})
	}
}
