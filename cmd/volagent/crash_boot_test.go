package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

// TestCrashBoot kills the agent at each point of its first start after a boot. During this start
// the agent mounts all claims again, one after the other. No claim may be lost.
func TestCrashBoot(t *testing.T) {
	var count crashCount
	count.report(t)
	boot := fakeBoots(t)
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

// crashBoot kills the agent at the given point of its first start after a boot. It returns false if
// the start ended before that point.
func (s scenario) crashBoot(t *testing.T, at int, boot func(*testing.T), count *crashCount) (reached bool) {
	t.Run(fmt.Sprintf("at %d", at), func(t *testing.T) {
		h := s.prepare(t)
		h.must(h.claim("a", bound(h)))
		h.must(h.claim("b", readOnly(h)))
		h.must(h.claim("c", plain(h)))
		before := h.claimList()
		pid := h.pluginPID("rec")
		h.kill()
		h.must(killed(pid))
		h.unmountAll()
		h.must(os.RemoveAll(filepath.Join(h.dir, "run")))
		h.starts++
		boot(t)

		o := order{At: at, Agent: true}
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
		h.must(h.up())
		count.recoveries.Add(1)
		h.settle()
		if after := h.claimList(); !slices.Equal(after, before) {
			t.Errorf("the claims are %+v, were %+v; points: %q", after, before, points)
		}
		s.outcome(h, "", h.pluginPID("rec"))
	})
	return reached && !t.Failed()
}

func (h *crashHost) claimList() []api.Claim {
	h.t.Helper()
	ctx, cancel := h.ctx()
	defer cancel()
	all, err := h.api.Claims(ctx, apiclient.ClaimFilter{})
	h.must(err)
	return all
}
