package claims_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// TestPending checks that the node status and `inspect` list the pending changes. A pending change
// is a requested change that the agent has not yet seen complete. A completed change disappears
// from the list.
func TestPending(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "20s", harness.WithExpansion(func(c *csitest.Config) {
		harness.WithSnapshots(c)
		c.Modify, c.ReadyAfter = true, -1
	}))
	h.Volctl("volume", "create", "data", "--plugin", "rec", "--mutable-param", "iops=100")
	is := func(want ...api.PendingChange) {
		t.Helper()
		screen := h.Volctl("node", "status")
		inspected, code := harness.Inspect(h.Host)
		for _, p := range want {
			if !strings.Contains(screen, p.Message) || !strings.Contains(screen, p.Command) || code != 0 || !strings.Contains(inspected, "pending: "+p.Subject+": "+p.Message) {
				t.Errorf("%s %s is missing:\n%s\nexit %d:\n%s", p.Subject, p.Message, screen, code, inspected)
			}
		}
		raw, _ := harness.Inspect(h.Host, "--json")
		for whose, text := range map[string]string{"node status": h.Volctl("node", "status", "-o", "json"), "inspect": raw} {
			var got struct{ Pending []api.PendingChange }
			h.Must(json.Unmarshal([]byte(text), &got))
			for i := range got.Pending {
				got.Pending[i].Since = time.Time{} // ignore the time, which differs between runs
			}
			if !slices.Equal(got.Pending, want) {
				t.Errorf("%s has\n%+v, want\n%+v", whose, got.Pending, want)
			}
		}
	}
	h.AddFaults(csitest.Fault{Method: csitest.ControllerModify, Code: codes.DeadlineExceeded, Message: "too slow"})
	if r := h.Try("volume", "modify", "data", "iops=200"); r.Code == 0 {
		t.Errorf("a modify of which nothing is known: %+v", r)
	}
	h.Volctl("volume", "expand", "data", "8MiB")
	h.Volctl("volume", "snapshot", "create", "data", "nightly", "--no-wait")
	growth := api.PendingChange{
		Subject: `volume "data"`, Message: "its storage has 8MiB; its contents are expanded when it is mounted for writing", Command: "volctl volume status data",
	}
	snapshot := api.PendingChange{
		Subject: `snapshot "nightly"`, Message: `of "data", plugin "rec": "snap-nightly" has not been seen to be ready`, Command: "volctl volume snapshot list --plugin rec",
	}
	is(growth, api.PendingChange{
		Subject: `volume "data"`, Message: "it is unknown whether modifying iops=200 had an effect", Command: "volctl volume modify data iops=200",
	}, snapshot)

	h.Volctl("volume", "modify", "data", "iops=200")
	h.Volctl("volume", "claim", "data")
	is(snapshot)
}
