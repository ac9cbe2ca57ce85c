package reconcile_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// growth describes how a storm's plugin can expand volumes, and which sizes it reports.
type growth struct {
	grows, offline bool
	// by volume id: the size of the storage, and the size that the node shows
	storage, shown map[string]int64
}

func (s *storm) info() plugin.Info {
	return plugin.Info{ID: "p", NodeID: "n", Caps: plugin.Caps{
		Attach: s.attach, Stage: s.stage, Expand: s.grows, NodeExpand: s.grows, Offline: s.grows && s.offline,
	}}
}

// expand requests a size that is larger than the current size and all requested sizes.
func (h *stormHost) expand(id string, more int) {
	h.change(id, func(r volume.Record) (volume.Record, error) {
		size := max(r.Volume.Capacity, r.Volume.Expansion.Want) + int64(more)
		r, _, err := volume.Expand(r, size, h.info(), nil)
		return r, err
	})
}

// mayExpand returns a description of the CSI rule that an expansion would break, or "". The caller
// holds mu.
func (s *storm) mayExpand(id string, a volume.Action) string {
	p := s.mounts[a.Path]
	switch {
	case a.Size <= 0:
		return fmt.Sprint("to no size: ", a.Size)
	case a.Kind == call.NodeExpand && (p.id == 0 || p.dead || p.hung || p.bare):
		return "it is not mounted at " + a.Path
	case a.Kind == call.NodeExpand && a.Size > s.storage[id]:
		return "the storage is not that large"
	case a.Kind == call.ControllerExpand && s.offline && (len(s.under(id, false)) > 0 || s.done["attached "+id] || s.done["staged "+id]):
		return "it is in use"
	default:
		return ""
	}
}

// expanded performs an expansion. The caller holds mu.
func (s *storm) expanded(id string, a volume.Action) volume.Outcome {
	if s.storage == nil {
		s.storage, s.shown = map[string]int64{}, map[string]int64{}
	}
	sizes := s.storage
	if a.Kind == call.NodeExpand {
		sizes = s.shown
	}
	sizes[id] = max(sizes[id], a.Size)
	return volume.Outcome{Capacity: sizes[id], NodeRequired: true}
}

// notExpanded describes an expansion that the plugin has neither performed nor refused. It returns
// "" if there is none. The caller holds mu.
func (s *storm) notExpanded(r volume.Record, held bool) string {
	id, v := r.Volume.ID, r.Volume
	e := v.Expansion
	switch {
	case e.Want > 0:
		return fmt.Sprintf("%q is to be expanded still: %+v", id, e)
	case v.Capacity > s.storage[id]:
		return fmt.Sprintf("%q has %d, and its storage %d", id, v.Capacity, s.storage[id])
	case held && e.Node > 0 && e.Refused.Step != call.NodeExpand:
		return fmt.Sprintf("%q is mounted, and not expanded: %+v", id, e)
	case e.Node == 0 && v.Capacity > s.shown[id]:
		return fmt.Sprintf("%q has %d, of which %d are shown, and nobody knows", id, v.Capacity, s.shown[id])
	default:
		return ""
	}
}

// TestStormBeforeExpansion checks a plugin that expands only unused volumes. If a claim arrives
// while an expansion is postponed, the claim must wait for the expansion, even across a crash.
func TestStormBeforeExpansion(t *testing.T) {
	expand := deed{What: "expand", Volume: "v", N: 1, Then: time.Millisecond}
	claim := deed{What: "claim", Volume: "v", Alloc: "a", Then: 100 * time.Millisecond}
	for name, all := range map[string][]deed{
		"in order": {expand, claim, {What: "nothing", Then: 3 * time.Second}},
		"a crash":  {expand, claim, {What: "kill the agent", Then: 3 * time.Second}},
		"a reboot": {expand, claim, {What: "reboot", Then: 3 * time.Second}},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := &stormHost{storm: newStorm(true, true, false, []fate{failed, failed})}
			h.grows, h.offline = true, true
			if bad := h.run(all); bad != "" {
				t.Errorf("%s: %s\nsteps:\n  %s", name, bad, strings.Join(h.steps, "\n  "))
			}
		})
	}
}
