package crash_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/crasher"
)

// TestCrashBoot kills the agent at each point of its first start after a reboot. During this start
// the agent mounts the volumes of all claims again, one after the other. No claim may be lost.
func TestCrashBoot(t *testing.T) {
	var count crashCount
	count.report(t)
	boot := harness.FakeBoots(t)
	for _, s := range []scenario{
		{name: "attach and stage"},
		{name: "bound, no stage", tune: withoutStage},
		{name: "no attach", tune: withoutAttach},
	} {
		t.Run(s.name, func(t *testing.T) {
			count.scenarios.Add(1)
			if !*crashFull {
				s.crashBoot(t, 1+s.rand("boot").IntN(8), boot, &count)
				return
			}
			for at := 1; s.crashBoot(t, at, boot, &count); at++ {
			}
		})
	}
}

// crashBoot kills the agent at the given point of its first start after a reboot. It returns false
// if the agent does not reach this point.
func (s scenario) crashBoot(t *testing.T, at int, boot func(*testing.T), count *crashCount) (reached bool) {
	t.Run(fmt.Sprintf("at %d", at), func(t *testing.T) {
		h := s.prepare(t)
		h.Must(h.claim("a", bound(h)))
		h.Must(h.claim("b", readOnly(h)))
		h.Must(h.claim("c", plain(h)))
		before := h.claimList()
		pid := h.PluginPID("rec")
		h.Kill()
		h.Must(crasher.Kill(pid))
		h.unmountAll()
		h.Must(os.RemoveAll(filepath.Join(h.Dir, "run")))
		h.starts++
		boot(t)

		o := crasher.Order{At: at, Agent: true}
		h.order(o)
		h.launch(true)
		if reached = h.diesOrSettles(o); reached {
			count.points.Add(1)
			count.kills.Add(1)
			h.records()
			h.launch(false)
		}
		points := h.points()
		h.disarm()
		h.Must(h.up())
		count.recoveries.Add(1)
		h.settle()
		if after := h.claimList(); !slices.Equal(after, before) {
			t.Errorf("the claims are %+v, were %+v; points: %q", after, before, points)
		}
		s.outcome(h, "", h.PluginPID("rec"))
	})
	return reached && !t.Failed()
}

func (h *crashHost) claimList() []api.Claim {
	h.T.Helper()
	ctx, cancel := h.ctx()
	defer cancel()
	all, err := h.api.Claims(ctx, apiclient.ClaimFilter{})
	h.Must(err)
	return all
}
