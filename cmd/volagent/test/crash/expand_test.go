package crash_test

import (
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// grownTo is the size of volume "data" after its expansion, in bytes.
const grownTo = 8 << 20

// expanding returns a scenario that expands a volume with or without claims. Once the intent is
// stored, the agent completes the expansion without another request and without a remount.
func expanding(name string, tune func(*csitest.Config), held ...string) scenario {
	return scenario{
		name: name, tune: harness.WithExpansion(tune), binding: 1, keeps: held,
		before: func(h *crashHost) { h.claims(held) },
		act: func(h *crashHost) error {
			ctx, cancel := h.ctx()
			defer cancel()
			_, err := h.api.ExpandVolume(ctx, "data", grownTo, patience)
			return err
		},
		done: func(h *crashHost) bool { return h.volume("data").Capacity == grownTo },
		after: func(h *crashHost) {
			if len(held) == 0 { // the expansion may be complete before this claim
				h.Must(h.claim("late", api.ClaimRequest{}))
			}
			ctx, cancel := h.ctx()
			defer cancel()
			st, err := h.api.VolumeStats(ctx, "data")
			if err != nil || st.BytesTotal != grownTo {
				h.T.Errorf("what is mounted has %+v, %v", st, err)
			}
		},
	}
}

// expandingClaimed returns a scenario in which another alloc claims the volume while the expansion
// is in progress.
func expandingClaimed(name string, tune func(*csitest.Config)) scenario {
	s := expanding(name, tune)
	act := s.act
	s.act = func(h *crashHost) error {
		ctx, cancel := h.ctx()
		defer cancel()
		if _, err := h.api.ExpandVolume(ctx, "data", grownTo, 0); err != nil {
			return err
		}
		if err := h.claim("late", api.ClaimRequest{}); err != nil {
			return err
		}
		return act(h)
	}
	return s
}

func expandScenarios() []scenario {
	mounted := expanding("expand, mounted", nil, "a", "b")
	mounted.every = true
	return []scenario{
		mounted,
		expanding("expand, mounted, no stage", withoutStage, "a"),
		expanding("expand, free", nil),
		expanding("expand, free, neither", harness.PublishOnly),
		expanding("expand, free, offline", func(c *csitest.Config) { c.Offline = true }),
		expandingClaimed("expand and claim, offline", func(c *csitest.Config) { c.Offline = true }),
	}
}
