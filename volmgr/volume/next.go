// Package volume is the domain of the agent. It defines volumes and claims. It decides which alloc
// may claim a volume, and which step brings a volume closer to the wanted state. The package has no
// effects: every decision is a function of its arguments. The comment above Next contains a diagram
// of the life of a volume.
package volume

import (
	"slices"

	"github.com/volagent/volagent/volmgr/call"
)

// Next returns the next step of a volume. The step brings the volume closer to the state that its
// claims want. Next has no side effects, and returns a step for every record and every observation.
// For a state that this release does not know, Next returns a Wait, which changes nothing.
//
//	               first claim                                   last release
//	(free) ──► ControllerPublish ──► NodeStage ──► NodePublish ──► … ──► NodeUnpublish ──► NodeUnstage
//	              │ error              │ error       │ error  ▲  │ bind                        │
//	              ▼                    ▼             ▼        │  ▼                          prove
//	       ControllerUnpublish   NodeUnstage   NodeUnpublish ─┘ unbind                        │
//	                                                                        ControllerUnpublish ──► free
//
// A shared volume has one more side, the hold. Acquire is the first step that makes a side, and GiveUp
// is the last step that undoes one. The comment above Hold contains its diagram.
//
// For a claim that is detached without the plugin, Unmount replaces NodeUnpublish. If that is the
// last claim, Unmount also replaces NodeUnstage. The skipped calls become pending calls.
//
// Next tries these decisions in this order:
//
//  1. Undo the mounts of claims that are no longer wanted, oldest claim first.
//  2. Undo mounts that appeared late.
//  3. Make pending calls.
//  4. Expand the storage.
//  5. If any claim is wanted, undo failed sides, then make missing and dead mounts again. The hold
//     of a shared volume comes first.
//  6. If no claim is wanted, take the volume off the host. The hold of a shared volume comes last.
//     While the cluster's store is not reachable, the last claim ends without these last steps.
//
// The node service expands a staged volume before the volume is published. If staging makes no
// mount, the node service expands the volume after its publish. The claim counts as mounted only
// after the expansion.
//
// Next skips a step that waits for a retry, or whose plugin is not ready. It then tries the steps
// that do not depend on the skipped step. If the node part and the controllers are separate, only
// the part that the step calls must be ready. While the host goes down, the function leave replaces
// the decisions that make sides.
func Next(r Record, o Observed) Action {
	if o.Halt != "" {
		return Action{Kind: Wait, Cause: CauseHalted, Reason: o.Halt}
	}
	if bad := unknownState(r); bad != "" {
		return Action{Kind: Wait, Cause: CauseInvalid, Reason: bad}
	}

	p := &planner{r: r, o: o, claims: r.Ordered()}
	if needs := p.undoes(); r.Leftover && r.left() && !o.Plugin.ReadyFor(needs) {
		return Action{Kind: Wait, Cause: CausePlugin, Reason: o.Plugin.Lacks(r.Volume.PluginID, needs)}
	}

	up := upPlanner{p}
	steps := []func() bool{p.detachClaim, p.late, p.makePendingCalls, up.expand, up.up, p.down}
	if o.Down {
		steps = []func() bool{p.detachClaim, p.late, p.makePendingCalls, p.leave, p.down}
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

// PathsToObserve returns the record with only those paths that the agent must check before it calls
// Next. To undo an unwanted claim, Next needs only the record, so the agent need not check the
// paths of such a claim.
func PathsToObserve(r Record) Record {
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

// detachClaim chooses a step that undoes the mounts of an unwanted claim, or deletes the claim. The
// last claim remains until the volume itself is off the host.
func (p *planner) detachClaim() bool {
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

// unpublish chooses a step that removes the mounts of one claim. The bind mount on the own
// directory must be removed before the target.
func (p *planner) unpublish(c Claim) bool {
	switch {
	case c.Bound != Absent:
		return p.unbind(c)
	case c.Published == Absent:
		return false
	case c.Without != WithPlugin:
		return p.try(Action{Kind: Unmount, Alloc: c.Alloc, Path: c.Target, How: c.Without})
	case c.Wanted && c.Published != Failed:
		// The agent records the Doubt before the unpublish call. After a crash, the next agent then
		// knows that this call may still be in progress.
		return p.try(Action{Kind: Doubt, Alloc: c.Alloc, Path: c.Target, Dead: true})
	default:
		return p.try(Action{Kind: call.NodeUnpublish, Alloc: c.Alloc, Path: c.Target})
	}
}

// unbind removes the bind mount on the own directory of a claim. For a wanted claim, the agent
// records a Doubt before the unmount. Otherwise, after a crash, the next agent would find the
// recorded mount missing and would conclude that a user had unmounted it.
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

// late undoes mounts that appeared late: the agent had already undone the call that made such a
// mount.
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
			if p.try(Action{Kind: call.NodeUnpublish, Alloc: w.Alloc, Path: w.Path}) {
				return true
			}
		case p.tryUnstage(Action{Kind: call.NodeUnstage, Path: w.Path}):
			return true
		}
	}

	return false
}

// explained reports whether the record explains a mount at a watched path.
func (p *planner) explained(w Watch) bool {
	if w.Alloc == "" {
		return p.r.Node.Staged != Absent
	}
	c, ok := p.r.Claims[w.Alloc]
	return ok && c.Target == w.Path && c.Published != Absent
}

// down chooses a step that takes an unwanted volume off the host.
func (p *planner) down() bool {
	n := p.r.Node
	switch {
	case p.anyWanted() || p.anyMounted():
		return false
	case n.Staged != Absent:
		return p.unstage()
	case p.leaving():
		// A forced detach must not wait for the plugin, so ControllerUnpublishVolume becomes a
		// pending call.
		return p.try(Action{Kind: Free, Alloc: p.claims[0].Alloc})
	case p.freesEarly():
		// The local part of a detach must not wait for the cluster's store.
		return p.try(Action{Kind: Free, Alloc: p.claims[0].Alloc, Early: true})
	case p.keepsHold():
		return p.wait(CauseCluster, "%s", p.o.Cluster.Away)
	case n.Attached != Absent && p.o.Down:
		return false // the agent calls ControllerUnpublishVolume after the next boot
	case n.Attached != Absent && len(n.PendingCalls) > 0:
		return false // the planner has already noted why the pending calls must wait
	case n.Attached != Absent && p.expects(func(w Watch) bool { return w != lateDetach }):
		return p.wait(CauseWatch, "a call of unknown outcome may still attach or mount the volume; %s waits for that", call.ControllerUnpublish)
	case n.Attached != Absent:
		return p.detach()
	case n.held():
		return p.holdDown()
	case len(p.claims) == 1:
		return p.try(Action{Kind: Free, Alloc: p.claims[0].Alloc})
	default:
		return false
	}
}

// detach disconnects the volume after a proof of unmount. The step Prove also records that all
// claims have left the node. After a crash, the next agent then knows that a
// ControllerUnpublishVolume may be in progress. If a claim began and ended after the proof, the
// agent repeats the proof.
func (p *planner) detach() bool {
	onNode := func(c Claim) bool { return !c.Wanted && c.State != NodeDetached && c.State != ControllerDetached }
	if !p.r.Node.Proven || slices.ContainsFunc(p.claims, onNode) {
		return p.try(Action{Kind: Prove})
	}
	return p.try(Action{
		Kind: call.ControllerUnpublish, NodeID: p.r.Node.NodeID, Sure: !p.expects(func(w Watch) bool { return w == lateAttach }),
	})
}

// unstage chooses the step that removes the staging. If the last claim is detached without the
// plugin, this step is an unmount on the host.
func (p *planner) unstage() bool {
	n := p.r.Node
	switch {
	case p.leaving():
		return p.tryUnstage(Action{Kind: Unmount, Path: n.StagingPath, How: p.claims[0].Without})
	case p.anyWanted() && n.Staged != Failed:
		return !p.anyMounted() && p.try(Action{Kind: Doubt, Path: n.StagingPath, Dead: true})
	default:
		return p.tryUnstage(Action{Kind: call.NodeUnstage, Path: n.StagingPath})
	}
}

// goingDown is the reason for a Wait while the host goes down.
const goingDown = "this host is going down"

// leave unmounts the volume because the host goes down, even if claims want the volume. It removes
// the bind mounts on own directories, then the targets, then the staging path. As in a repair, the
// agent records a Doubt before each call. After a crash, the Doubt tells the next agent which mount
// was being undone.
//
// The claims remain wanted, and the agent mounts the volume for them again after the next boot. The
// storage remains connected, because a connection survives a reboot. ControllerUnpublishVolume
// might also need services that are already stopped.
func (p *planner) leave() bool {
	if !p.anyWanted() {
		return false // the function down chooses the remaining steps
	}

	for _, c := range p.claims {
		if c.Wanted && p.unpublish(c) {
			return true
		}
	}

	return p.r.Node.Staged != Absent && !p.anyMounted() && p.unstage()
}

// OnHost reports whether the volume is, or may be, mounted or staged on this host. The agent must
// unmount such a volume before the host goes down.
func (r Record) OnHost() bool {
	p := planner{claims: r.Ordered()}
	return r.Node.Staged != Absent || p.anyPublished()
}

// FocusRecord returns the record with only those claims that Next must examine now. These are the
// unsettled claims, the misplaced claims, and one settled claim that represents all others. Without
// FocusRecord, the cost of each step would grow with the number of claims of the volume.
//
// For both records, Next returns the same step as long as the mounts of the omitted claims are in
// place. An earlier check of all claims must have shown this. If every claim may matter,
// FocusRecord returns the whole record and false.
func FocusRecord(r Record, misplaced map[string]bool) (Record, bool) {
	n := r.Node
	held := !r.Volume.Shared || n.Hold.usable() && (n.Hold.Confirmed || n.Attached != Present)
	staged := n.Staged == Present || n.Staged == Absent && !n.Uses.Stage
	attached := n.Attached == Present || n.Attached == Absent && !n.Uses.Attach
	expanding := r.Expanding() || r.Volume.Expansion.Node != 0 // the order of all claims matters for NodeExpandVolume
	pending := len(n.Watches) > 0 || len(n.PendingCalls) > 0 || expanding || r.Leftover
	if !held || !staged || !attached || pending {
		return r, false
	}

	few := map[string]Claim{}
	one := ""
	for alloc, c := range r.Claims {
		switch {
		case !c.settled() || misplaced[alloc]:
			few[alloc] = c
		case one == "":
			one = alloc
		}
	}

	if one != "" {
		few[one] = r.Claims[one]
	}

	r.Claims = few
	return r, true
}

// settled reports whether the claim is mounted and the record shows all its sides as made.
func (c Claim) settled() bool {
	bound := c.At == "" || c.Bound == Present
	return c.Wanted && c.State == Mounted && c.Published == Present && c.owned() && bound
}

// MisplacedClaims returns the settled claims whose observed mounts differ from the recorded mounts.
func MisplacedClaims(r Record, o Observed) map[string]bool {
	var out map[string]bool
	for alloc, c := range r.Claims {
		if !c.settled() || c.InPlace(o.Targets[alloc], o.Binds[alloc]) {
			continue
		}
		if out == nil {
			out = map[string]bool{}
		}

		out[alloc] = true
	}

	return out
}

// FocusIsValid reports whether the result of FocusRecord still represents the omitted claims after
// an observation. The staging and all settled claims must be in place. Claims in misplaced are
// exempt.
func FocusIsValid(r Record, o Observed, misplaced map[string]bool) bool {
	if o.Down || o.Staging.Seen == SeenDead { // in these cases, the agent unmounts all claims
		return false
	}
	if n := r.Node; n.Staged == Present {
		staged := o.Staging.Seen == SeenMount && o.Staging.Is(n.Mount)
		if n.Mount == nil { // a staging without a mount is valid only in its own boot
			staged = n.Boot == o.Boot
		}
		if !staged {
			return false
		}
	}

	for alloc := range MisplacedClaims(r, o) {
		if !misplaced[alloc] {
			return false
		}
	}

	return true
}
