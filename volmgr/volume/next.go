package volume

import (
	"fmt"
	"slices"
)

// Next decides the one step that brings a volume closer to what its claims
// want. It is pure and total: for every record and every observation there is
// an answer, and a state that this release does not know is a Wait that keeps
// the volume as it is.
//
//	               first claim                                   last release
//	(free) ──► ControllerPublish ──► NodeStage ──► NodePublish ──► … ──► NodeUnpublish ──► NodeUnstage
//	              │ error              │ error       │ error  ▲  │ bind                        │
//	              ▼                    ▼             ▼        │  ▼                          prove
//	       ControllerUnpublish   NodeUnstage   NodeUnpublish ─┘ unbind                        │
//	                                                                        ControllerUnpublish ──► free
//
// A claim that is released without the plugin goes by Unmount in place of
// NodeUnpublish, and of NodeUnstage if it is the last; these calls are then owed.
//
// The order of decisions: releases, before publishes, the oldest claim first;
// then mounts that came late; then calls that are owed; then the storage is
// expanded; then, if any claim is wanted, what failed is undone and whatever is
// dead or missing is made again; else the volume is taken down. What is staged is
// expanded before it is published, what is not staged before its claim is taken. A
// step that is parked, or that needs a plugin which is not ready, is passed over: what
// does not depend on it goes on. Where node and controller are apart that is the one
// that the step calls. While the host goes down, leave takes the place of all that
// makes something.
func Next(r Record, o Observed) Action {
	if o.Halt != "" {
		return Action{Kind: Wait, Cause: CauseHalted, Reason: o.Halt}
	}
	if bad := r.unrecognised(); bad != "" {
		return Action{Kind: Wait, Cause: CauseInvalid, Reason: bad}
	}
	p := &planner{r: r, o: o, claims: r.Ordered()}
	if needs := p.undoes(); r.Debt && r.left() && !o.Plugin.ReadyFor(needs) {
		return Action{Kind: Wait, Cause: CausePlugin, Reason: o.Plugin.Lacks(r.Volume.PluginID, needs)}
	}
	steps := []func() bool{p.release, p.late, p.owed, p.expand, p.up, p.down}
	if o.Down {
		steps = []func() bool{p.release, p.late, p.owed, p.leave, p.down}
	}
	for _, decide := range steps {
		if decide() {
			return p.chosen
		}
	}
	switch {
	case p.blocked.Kind == Wait:
		return p.blocked
	case o.Down && len(r.Node.Watches) == 0 && (r.left() || r.Expanding()):
		return Action{Kind: Wait, Cause: CauseDown, Reason: goingDown}
	case len(r.Node.Watches) == 0:
		return Action{Kind: Settled}
	case !p.expects(func(Watch) bool { return true }):
		return Action{Kind: EndWatch}
	default:
		return Action{Kind: Wait, Cause: CauseWatch, Reason: "a call of unknown outcome may still have an effect"}
	}
}

// ToSee returns the record with those paths alone that Next has to be shown: what
// nobody wants is undone by what is recorded of it, and looks like whatever it may.
func (r Record) ToSee() Record {
	wanted := make(map[string]Claim, len(r.Claims))
	for alloc, c := range r.Claims {
		if c.Wanted {
			wanted[alloc] = c
		}
	}
	if r.Claims = wanted; len(wanted) == 0 {
		r.Node.StagingPath = ""
	}
	return r
}

// planner collects one decision: the step that was chosen, or why the first
// one that was wanted could not be.
type planner struct {
	r       Record
	o       Observed
	claims  []Claim
	chosen  Action
	blocked Action
}

// try chooses a step unless something stands in its way.
func (p *planner) try(a Action) bool {
	switch {
	case a.RPC() && p.o.Debt != "":
		return p.wait(CauseDebt, "%s", p.o.Debt)
	case p.o.Parked[a.Key()]:
		return p.wait(CauseBackoff, "%s failed and is not due yet", a.Kind)
	case a.RPC() && !p.o.Plugin.ReadyFor(a.Kind):
		return p.wait(CausePlugin, "%s", p.o.Plugin.Lacks(p.r.Volume.PluginID, a.Kind))
	}
	p.chosen = a
	return true
}

// undoes is the call that comes first of those that take a volume down.
func (p *planner) undoes() Kind {
	n, late := p.r.Node, p.watches(func(w Watch) bool { return p.o.Watched[w.Path].Seen != SeenNothing })
	if n.Attached != Absent && n.Staged == Absent && len(n.Owed) == 0 && !p.anyPublished() && !late {
		return ControllerUnpublish
	}
	return NodeUnpublish
}

// wait notes why something wanted cannot be done; the first reason stays.
func (p *planner) wait(c Cause, format string, args ...any) bool {
	if p.blocked.Kind == "" {
		p.blocked = Action{Kind: Wait, Cause: c, Reason: fmt.Sprintf(format, args...)}
	}
	return false
}

// release undoes claims that are no longer wanted. The last claim of all stays
// until the volume itself is down.
func (p *planner) release() bool {
	for _, c := range p.claims {
		switch {
		case c.Wanted:
		case c.Bound != Absent || c.Published != Absent:
			if p.unpublish(c) {
				return true
			}
		case len(p.claims) > 1:
			if p.try(Action{Kind: Free, Alloc: c.Alloc}) {
				return true
			}
		}
	}
	return false
}

// unpublish takes one claim's mounts away, the user's own first.
func (p *planner) unpublish(c Claim) bool {
	switch {
	case c.Bound != Absent:
		return p.unbind(c)
	case c.Published == Absent:
		return false
	case c.Without != WithPlugin:
		return p.try(Action{Kind: Unmount, Alloc: c.Alloc, Path: c.Target, How: c.Without})
	case c.Wanted && c.Published != Failed:
		// On record first, so that after a crash it is known that the call may
		// still be at work.
		return p.try(Action{Kind: Doubt, Alloc: c.Alloc, Path: c.Target, Dead: true})
	default:
		return p.try(Action{Kind: NodeUnpublish, Alloc: c.Alloc, Path: c.Target})
	}
}

// unbind takes the user's own mount of a claim away. Of one that is wanted it is on
// record first that the mount is not to be what it was: a mount that is on record and
// is not there was unmounted by somebody else.
func (p *planner) unbind(c Claim) bool {
	switch {
	case c.vanished(p.o.Binds[c.Alloc]):
		return p.wait(CauseOwner, "%s was unmounted, and the claim of %q ends with that", c.At, c.Alloc)
	case c.Wanted && c.Bound == Present:
		return p.try(Action{Kind: Doubt, Alloc: c.Alloc, Path: c.At, Dead: true})
	default:
		return p.try(Action{Kind: Unbind, Alloc: c.Alloc, Path: c.At, How: c.Without})
	}
}

// late negates again what an earlier call of unknown outcome mounted after it
// was negated.
func (p *planner) late() bool {
	for _, w := range p.r.Node.Watches {
		if w.Undo || w.Attachment || p.explained(w) {
			continue
		}
		switch s := p.o.Watched[w.Path]; {
		case s.Seen == SeenNothing:
		case s.Seen == SeenHung || s.Seen == SeenError:
			p.wait(CauseHung, "%s: %s", w.Path, s.Detail)
		case w.Alloc != "":
			if p.try(Action{Kind: NodeUnpublish, Alloc: w.Alloc, Path: w.Path}) {
				return true
			}
		case p.tryUnstage(Action{Kind: NodeUnstage, Path: w.Path}):
			return true
		}
	}
	return false
}

// explained reports whether the record accounts for a mount at a watched path.
func (p *planner) explained(w Watch) bool {
	if w.Alloc == "" {
		return p.r.Node.Staged != Absent
	}
	c, ok := p.r.Claims[w.Alloc]
	return ok && c.Target == w.Path && c.Published != Absent
}

// down takes the volume off the host once nobody wants it.
func (p *planner) down() bool {
	n := p.r.Node
	switch {
	case p.anyWanted() || p.anyMounted():
		return false
	case n.Staged != Absent:
		return p.unstage()
	case p.leaving():
		// The attachment needs the plugin, and whoever asked does not wait for it.
		return p.try(Action{Kind: Free, Alloc: p.claims[0].Alloc})
	case n.Attached != Absent && p.o.Down:
		return false // the next boot detaches it
	case n.Attached != Absent && len(n.Owed) > 0:
		return false // why they could not be made stands already
	case n.Attached != Absent && p.expects(func(w Watch) bool { return w != lateDetach }):
		return p.wait(CauseWatch, "a call of unknown outcome may still attach or mount the volume; %s waits for that", ControllerUnpublish)
	case n.Attached != Absent:
		return p.detach()
	case len(p.claims) == 1:
		return p.try(Action{Kind: Free, Alloc: p.claims[0].Alloc})
	default:
		return false
	}
}

// detach undoes the attachment, after proof that nothing here uses the device. The proof also
// puts on record that claims have left the node, by which the next agent knows after a crash
// that the call may be under way. So it is repeated for a claim that came and went since.
func (p *planner) detach() bool {
	onNode := func(c Claim) bool { return !c.Wanted && c.State != NodeDetached && c.State != ControllerDetached }
	if !p.r.Node.Proven || slices.ContainsFunc(p.claims, onNode) {
		return p.try(Action{Kind: Prove})
	}
	return p.try(Action{
		Kind: ControllerUnpublish, NodeID: p.r.Node.NodeID, Sure: !p.expects(func(w Watch) bool { return w == lateAttach }),
	})
}

// unstage takes the staging away, without the plugin if the last claim goes so.
func (p *planner) unstage() bool {
	n := p.r.Node
	switch {
	case p.leaving():
		return p.tryUnstage(Action{Kind: Unmount, Path: n.StagingPath, How: p.claims[0].Without})
	case p.anyWanted() && n.Staged != Failed:
		return !p.anyMounted() && p.try(Action{Kind: Doubt, Path: n.StagingPath, Dead: true})
	default:
		return p.tryUnstage(Action{Kind: NodeUnstage, Path: n.StagingPath})
	}
}

func (p *planner) anyWanted() bool {
	for _, c := range p.claims {
		if c.Wanted {
			return true
		}
	}
	return false
}

func (p *planner) anyPublished() bool {
	for _, c := range p.claims {
		if c.Published != Absent || c.Bound != Absent {
			return true
		}
	}
	return false
}

// anyMounted is anyPublished, or a watched target where something was mounted
// late, whoever's it was.
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

// undoing reports whether a call that was given up may still undo what is made
// at a path.
func (p *planner) undoing(path string) bool {
	return p.expects(func(w Watch) bool { return !w.Attachment && w.Path == path && w.Undo })
}

// expects reports whether one of the late effects that is selects may still come.
func (p *planner) expects(is func(Watch) bool) bool {
	return p.watches(func(w Watch) bool { return !p.o.over(w) && is(w) })
}

func (p *planner) watches(is func(Watch) bool) bool {
	return slices.ContainsFunc(p.r.Node.Watches, is)
}
