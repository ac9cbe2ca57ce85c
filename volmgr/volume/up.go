package volume

import (
	"slices"

	"github.com/volagent/volagent/volmgr/call"
)

// upPlanner chooses the steps that mount and expand a volume.
type upPlanner struct{ *planner }

// up chooses the next step that makes a side for the wanted claims. It reports whether it chose a
// step.
func (p upPlanner) up() bool {
	switch {
	case !p.anyWanted():
		return false
	case p.o.Leftover != "":
		return p.wait(CauseLeftover, "%s", p.o.Leftover)
	case p.r.Volume.Expansion.offline():
		return p.wait(CauseExpand, "volume %q is expanded first", p.r.Volume.ID)
	case p.dead():
		return p.clear()
	}

	for _, c := range p.claims {
		if c.Wanted && c.Published == Failed && p.unpublish(c) {
			return true
		}
	}

	for _, decide := range []func() (chosen, ok bool){p.holdUp, p.stagingUp, p.nodeExpand} {
		if done, ok := decide(); !ok {
			return done
		}
	}

	return slices.ContainsFunc(p.claims, func(c Claim) bool { return c.Wanted && p.publish(c) })
}

// dead reports whether the mount at the staging path returns only errors.
func (p upPlanner) dead() bool {
	return p.o.Staging.Seen == SeenDead && p.r.Node.Staged != Absent
}

// clear chooses a step that undoes the staging and all mounts that depend on it. Afterwards, the
// agent can stage the volume again for the same claims.
func (p upPlanner) clear() bool {
	for _, c := range p.claims {
		if p.unpublish(c) {
			return true
		}
	}
	return p.unstage()
}

// stagingUp chooses a step that connects or stages the volume. The result chosen reports whether it
// chose a step, and ok reports whether the staging is complete, so that the agent may publish
// claims.
func (p upPlanner) stagingUp() (chosen, ok bool) {
	n, caps := p.r.Node, p.o.Plugin.Info.Caps
	switch {
	case n.Staged == Present && p.undoing(n.StagingPath):
		return p.waitForUnstage(), false
	case n.Staged == Present && (n.Mount == nil && n.Boot == p.o.Boot || p.o.Staging.Is(n.Mount)):
		return false, true
	case p.o.Staging.Seen == SeenHung || p.o.Staging.Seen == SeenError:
		return p.wait(CauseHung, "staging path %s: %s", n.StagingPath, p.o.Staging.Detail), false
	case p.o.Staging.there() && (n.Staged == Present || n.Staged == Absent) && !p.watched(n.StagingPath):
		return p.wait(CauseForeign, "a mount that was not made by this volume's staging is at %s", n.StagingPath), false
	case p.o.Staging.there() && n.Staged == Absent && !p.anyPublished():
		return false, false // the agent cannot undo this late mount yet
	case n.Staged == Present:
		return p.try(Action{Kind: Doubt, Path: n.StagingPath}), false
	case n.Staged == Failed && !p.anyPublished():
		return p.unstage(), false
	case len(n.PendingCalls) > 0 && (caps.Stage || n.Uses.Stage):
		return p.unpublishForPending(), false
	case p.unserved(): // without its capabilities, the plugin may need ControllerPublishVolume
		return p.wait(CausePlugin, "%s", p.o.Plugin.Lacks(p.r.Volume.PluginID, call.ControllerPublish)), false
	case caps.Attach && n.NodeID == "" && p.o.Plugin.Info.NodeID == "":
		return p.wait(CausePlugin, "plugin %q does not say which node this is", p.r.Volume.PluginID), false
	case n.Uses.with(p.o.Plugin.Info) != n.Uses, caps.Attach && n.NodeID == "":
		return p.try(Action{Kind: Plan, NodeID: p.o.Plugin.Info.NodeID, Uses: n.Uses.with(p.o.Plugin.Info)}), false
	case caps.Attach && n.Attached == Failed && n.Staged == Absent && !p.anyPublished() && !p.expects(func(w Watch) bool { return !w.Attachment }):
		return p.detach(), false
	case caps.Attach && n.Attached != Present && p.expects(func(w Watch) bool { return w == lateDetach }):
		return p.wait(CauseWatch, "a ControllerUnpublishVolume of unknown outcome may still detach the volume"), false
	case caps.Attach && n.Attached != Present:
		return p.try(Action{Kind: call.ControllerPublish, NodeID: n.NodeID}), false
	}

	if chosen, ok := p.confirmUp(); !ok {
		return chosen, false
	}

	switch {
	case caps.Stage && p.undoing(n.StagingPath):
		return p.waitForUnstage(), false
	case caps.Stage:
		return p.try(Action{Kind: call.NodeStage, Path: n.StagingPath}), false
	default:
		return false, true
	}
}

// waitForUnstage notes a wait until an earlier unstage can no longer take effect.
func (p upPlanner) waitForUnstage() bool {
	return p.wait(CauseWatch, "an unstage of unknown outcome may still unmount %s", p.r.Node.StagingPath)
}

// publish chooses the next step that makes a mount of one claim.
func (p upPlanner) publish(c Claim) bool {
	s := p.o.Targets[c.Alloc]
	switch {
	case c.Published == Failed:
		return false // the undoing step has failed and waits for its retry
	case c.Published != Absent && s.Seen == SeenDead:
		return p.unpublish(c)
	case s.Seen == SeenHung || s.Seen == SeenError:
		return p.wait(CauseHung, "target %s: %s", c.Target, s.Detail)
	case c.Published == Present && s.Is(c.Mount) && !c.owned():
		return p.try(Action{Kind: Own, Alloc: c.Alloc, Path: c.Target})
	case c.Published == Present && s.Is(c.Mount):
		return p.bind(c)
	case s.there() && c.Published != Unknown && !p.watched(c.Target):
		return p.wait(CauseForeign, "a mount that was not made by this claim is at %s", c.Target)
	case s.there() && c.Published == Absent:
		return false // the agent cannot undo this late mount yet
	case c.Published == Present:
		return p.try(Action{Kind: Doubt, Alloc: c.Alloc, Path: c.Target})
	case hasPendingCallAt(p.r, c.Target):
		return false // the pending call comes first, and the planner has noted why that call must wait
	case p.undoing(c.Target):
		return p.wait(CauseWatch, "an unpublish of unknown outcome may still unmount %s", c.Target)
	default:
		return p.try(Action{Kind: call.NodePublish, Alloc: c.Alloc, Path: c.Target})
	}
}

// bind chooses the bind mount on the own directory of a published claim.
func (p upPlanner) bind(c Claim) bool {
	s := p.o.Binds[c.Alloc]
	switch {
	case c.At == "":
		return p.take(c)
	case c.Bound != Absent && s.Seen == SeenDead:
		return p.unbind(c)
	case c.Bound == Present && s.Is(c.BoundMount):
		return p.take(c)
	case s.Seen == SeenHung || s.Seen == SeenError:
		return p.wait(CauseHung, "%s: %s", c.At, s.Detail)
	case s.Seen == SeenMount && c.Bound == Present:
		return p.wait(CauseForeign, "another mount is at %s", c.At)
	case c.vanished(s):
		return p.wait(CauseOwner, "%s was unmounted, and the claim of %q ends with that", c.At, c.Alloc)
	case c.Bound == Present:
		return p.try(Action{Kind: Doubt, Alloc: c.Alloc, Path: c.At})
	default:
		return p.try(Action{Kind: Bind, Alloc: c.Alloc, Path: c.At})
	}
}
