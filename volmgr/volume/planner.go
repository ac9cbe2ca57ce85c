package volume

import (
	"fmt"
	"slices"

	"github.com/volagent/volagent/volmgr/call"
)

// planner makes one decision of Next. The result is the chosen step. If no step is possible now,
// the result is the reason why the first wanted step must wait.
type planner struct {
	r       Record
	o       Observed
	claims  []Claim
	chosen  Action
	blocked Action
}

// try chooses the step a, or notes why this step must wait. It reports whether it chose the step.
func (p *planner) try(a Action) bool {
	switch {
	case a.RPC() && p.o.Leftover != "":
		return p.wait(CauseLeftover, "%s", p.o.Leftover)
	case p.o.Parked[a.Key()]:
		return p.wait(CauseBackoff, "%s failed and is not due yet", a.Kind)
	case p.r.Rescoping && a.needsScope():
		return p.wait(CauseCluster, "the change of its scope was interrupted, and the cluster has not answered yet which scope the volume has")
	case p.o.Cluster.Away != "" && p.r.clustered(a):
		return p.wait(CauseCluster, "%s", p.o.Cluster.Away)
	case a.RPC() && !p.o.Plugin.ReadyFor(a.Kind):
		return p.wait(CausePlugin, "%s", p.o.Plugin.Lacks(p.r.Volume.PluginID, a.Kind))
	}

	p.chosen = a
	return true
}

// needsScope reports whether a step is only correct in one of the scopes host and shared. Local steps
// that undo something are correct in both.
func (a Action) needsScope() bool {
	switch a.Kind {
	case call.ControllerPublish, call.ControllerUnpublish, call.ControllerExpand, call.NodeStage, call.NodeExpand:
		return true
	default:
		return false
	}
}

// undoes returns the kind of the first call that is needed to take the volume off the host.
func (p *planner) undoes() call.Method {
	n, late := p.r.Node, p.watches(func(w Watch) bool { return p.o.Watched[w.Path].Seen != SeenNothing })
	if n.Attached != Absent && n.Staged == Absent && len(n.PendingCalls) == 0 && !p.anyPublished() && !late {
		return call.ControllerUnpublish
	}
	return call.NodeUnpublish
}

// wait notes the reason why a wanted step must wait, unless an earlier reason is already noted. It
// returns false, because it chose no step.
func (p *planner) wait(c Cause, format string, args ...any) bool {
	if p.blocked.Kind == "" {
		p.blocked = Action{Kind: Wait, Cause: c, Reason: fmt.Sprintf(format, args...)}
	}
	return false
}

func (p *planner) anyWanted() bool {
	return slices.ContainsFunc(p.claims, func(c Claim) bool { return c.Wanted })
}

func (p *planner) anyPublished() bool {
	return slices.ContainsFunc(p.claims, func(c Claim) bool { return c.Published != Absent || c.Bound != Absent })
}

// anyMounted reports whether any claim is published, or any watched target has a late mount. The
// claim of such a target may already have ended.
func (p *planner) anyMounted() bool {
	for _, w := range p.r.Node.Watches {
		if w.Alloc != "" && p.o.Watched[w.Path].Seen != SeenNothing {
			return true
		}
	}
	return p.anyPublished()
}

func (p *planner) watched(path string) bool {
	return p.watches(func(w Watch) bool { return !w.Attachment && w.Path == path && !w.Undo })
}

// undoing reports whether an earlier call of unknown result may still undo the next mount at the
// path.
func (p *planner) undoing(path string) bool {
	return p.expects(func(w Watch) bool { return !w.Attachment && w.Path == path && w.Undo })
}

// expects reports whether a late effect is still possible for any watch that is selects.
func (p *planner) expects(is func(Watch) bool) bool {
	return p.watches(func(w Watch) bool { return !p.o.over(w) && is(w) })
}

func (p *planner) watches(is func(Watch) bool) bool {
	return slices.ContainsFunc(p.r.Node.Watches, is)
}
