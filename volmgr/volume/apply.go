package volume

import (
	"slices"

	"github.com/volagent/volagent/volmgr/call"
)

// Apply returns the record with the outcome of a step. The record may have changed since Next chose
// the step. Apply keeps an intent that was stored in the meantime, and ignores a step that no
// longer fits the record.
func Apply(r Record, a Action, out Outcome) (Record, []Event) {
	next := apply(r, a, out)
	return next, events(r, next, a, out)
}

func apply(r Record, a Action, out Outcome) Record {
	switch {
	case a.Kind == call.ControllerExpand, a.Kind == call.NodeExpand:
		return applyExpand(r, a, out)
	case out.Unsent:
		return unsentHold(r, a, out)
	}

	switch a.Kind {
	case Plan, call.ControllerPublish, call.ControllerUnpublish, Prove:
		return applyAttach(r, a, out)
	case call.NodeStage, call.NodeUnstage:
		return applyStage(r, a, out)
	case call.NodePublish, call.NodeUnpublish:
		return applyPublish(r, a, out)
	case Bind, Unbind:
		return applyBind(r, a, out)
	case Acquire, Trust, Confirm, GiveUp:
		return applyHold(r, a, out)
	case Own:
		return applyOwn(r, a, out)
	case Unmount:
		return applyUnmount(r, a, out)
	case Take:
		return applyTake(r, a)
	case Doubt:
		return applyDoubt(r, a)
	case Free:
		return applyFree(r, a)
	case EndWatch:
		r.Node.Watches = nil
	}

	return r
}

// after returns the state of a side after the call that makes it. After a failed call, the side may
// exist nevertheless, so its state is Failed.
func after(out Outcome) Side {
	if out.Err != nil {
		return Failed
	}
	return Present
}

// undone returns the state of a side after the call that undoes it. After a failed call, the agent
// must still undo the side. The code "Unimplemented" counts as success only for a side that may
// never have been made.
func undone(was Side, out Outcome) Side {
	if out.Err == nil || was == Unknown && out.Err.Code == CodeUnimplemented {
		return Absent
	}
	return Failed
}

func applyAttach(r Record, a Action, out Outcome) Record {
	n := &r.Node
	switch a.Kind {
	case Plan:
		if n.Uses = a.Uses; n.NodeID == "" || n.Attached == Absent {
			n.NodeID = a.NodeID
		}
	case call.ControllerPublish, call.ControllerUnpublish:
		if n.Hold.Lost {
			return r // the next holder detaches the volume
		}
		return applyAttachment(r, a, out)
	case Prove:
		if n.Proven = out.Err == nil; n.Proven && n.Staged == Absent {
			n.Unseen = nil
			r = proveHold(markDetached(r, NodeDetached), a.Yield)
		}
	}

	return r
}

// applyAttachment records the outcome of a ControllerPublishVolume or ControllerUnpublishVolume.
func applyAttachment(r Record, a Action, out Outcome) Record {
	n := &r.Node
	switch a.Kind {
	case call.ControllerPublish:
		n.Attached, n.Proven = after(out), false
		n.Hold.Confirmed, n.Hold.Before = false, Kept{}
		n.NodeID = a.NodeID
		n.AttachedReadOnly = out.ReadOnly
		n.PublishContext = out.PublishContext
		if out.Err != nil && out.Err.Uncertain() {
			r = r.watching(lateAttach)
		}
	case call.ControllerUnpublish:
		// A shared volume needs the proof again when the host gives up its hold.
		n.Attached, n.Proven = undone(n.Attached, out), r.Volume.Shared && n.Proven && out.Err == nil
		n.Hold.Confirmed, n.Hold.Before = false, Kept{}
		switch {
		case out.Err != nil && out.Err.Uncertain():
			// Although the plugin has answered, its storage system may still be working on the
			// call.
			r = r.watching(lateDetach)
		case n.Attached == Absent && a.Sure:
			r = r.unwatched(func(w Watch) bool { return w == lateAttach })
		case n.Attached == Absent && slices.Contains(n.Watches, lateAttach):
			n.Attached = Unknown // an earlier ControllerPublishVolume may still connect the volume again
		}

		if r.Node.Attached == Absent {
			r.Node.PublishContext, r.Node.AttachedReadOnly = nil, false
			r = clearUndone(markDetached(r, ControllerDetached))
		}
	}

	return r
}

// markDetached sets the state of every unwanted claim whose mounts are undone to s.
func markDetached(r Record, s ClaimState) Record {
	for _, c := range r.Ordered() {
		if !c.Wanted && c.Published == Absent && c.Bound == Absent {
			c.State = s
			r = r.with(c)
		}
	}
	return r
}

func applyStage(r Record, a Action, out Outcome) Record {
	n := &r.Node
	n.Proven = false

	if a.Kind == call.NodeStage {
		n.Staged = after(out)
		n.Mount = nil
		if out.Err != nil && out.Err.Uncertain() {
			r = r.watching(Watch{Path: a.Path})
		}
		if out.Err != nil {
			return r
		}

		r = allowNodeExpand(enterBoot(r, out.Boot))
		r.Node.Mount = out.Mount
		r.Node.Devices = union(r.Node.Devices, out.Devices)
		return r
	}

	if out.Err != nil && !out.Err.Answered {
		r = r.watching(Watch{Path: a.Path, Undo: true})
	}
	if out.Err == nil {
		r = removePendingCalls(r, call.NodeUnstage, a.Path)
	}
	if a.Pending {
		return r // a pending call changes no state, because the host has already undone this side
	}
	if r.Node.Staged = undone(r.Node.Staged, out); r.Node.Staged == Absent {
		r.Node.Mount = nil
	}

	return r
}

func applyPublish(r Record, a Action, out Outcome) Record {
	c, ok := r.Claims[a.Alloc]
	if a.Kind == call.NodeUnpublish {
		if out.Err != nil && !out.Err.Answered {
			r = r.watching(Watch{Path: a.Path, Alloc: a.Alloc, Undo: true})
		}
		if out.Err == nil {
			r = removePendingCalls(r, call.NodeUnpublish, a.Path)
		}
		if !ok || c.Target != a.Path || a.Pending {
			return r // the step undid a late mount of an ended claim, or made a pending call
		}
		if c.Published = undone(c.Published, out); c.Published == Absent {
			c.Mount = nil
		}

		c.Owned = false
		return r.with(c)
	}

	if out.Err != nil && out.Err.Uncertain() {
		r = r.watching(Watch{Path: a.Path, Alloc: a.Alloc})
	}
	if !ok {
		return r
	}

	c.Published, c.Mount, c.Owned = after(out), nil, false
	if out.Err == nil {
		c.Mount = out.Mount
		if r = enterBoot(r, out.Boot); r.Node.Mount == nil && expansionPath(r) == "" {
			r = allowNodeExpand(r)
		}

		r.Node.Devices = union(r.Node.Devices, out.Devices)
	}

	r.Node.Proven = false
	r = promoteClaim(r, c, a.Kind)
	if out.StageSuspect || r.Node.refusedUnstaged(out) {
		r.Node.Staged, r.Node.Mount = Failed, nil
		if slices.ContainsFunc(r.Ordered(), func(o Claim) bool { return o.Published == Present }) {
			r.Node.Staged = Unknown // an unstage would break the mounts of other claims, so the agent only stages again
		}
	}

	return r
}

// refusedUnstaged reports whether the plugin may have refused a publish because it no longer
// considers the volume staged. If staging made no mount, as for a block device, no other sign shows
// that the staging was lost.
func (n NodeSide) refusedUnstaged(out Outcome) bool {
	return out.Err != nil && out.Err.Code == CodeFailedPrecondition && n.Staged == Present && n.Mount == nil
}

// applyOwn records that the volume's root has the requested ownership. It records this only if the
// claim still has the mount that the step changed.
func applyOwn(r Record, a Action, out Outcome) Record {
	c, ok := r.Claims[a.Alloc]
	if !ok || out.Err != nil || c.Published != Present || c.Target != a.Path {
		return r
	}
	c.Owned = true
	return promoteClaim(r, c, a.Kind)
}

func applyBind(r Record, a Action, out Outcome) Record {
	c, ok := r.Claims[a.Alloc]
	if !ok {
		return r
	}
	if a.Kind == Unbind {
		c.Bound = undone(c.Bound, out)
	} else {
		c.Bound = after(out)
	}

	switch c.Bound {
	case Present:
		c.BoundMount = out.Mount
	case Absent:
		c.BoundMount = nil
	}

	if out.Unseen != nil {
		r.Node.Unseen = append(slices.Clone(r.Node.Unseen), *out.Unseen)
		r.Node.Proven = false
	}

	return promoteClaim(r, c, a.Kind)
}

// taken returns the claim with the state Mounted if the claim is wanted and has all its mounts.
func (c Claim) taken() Claim {
	if c.Wanted && c.State == Pending && c.Published == Present && c.owned() && (c.At == "" || c.Bound == Present) {
		c.State = Mounted
	}
	return c
}

// applyDoubt marks a side as unknown if its mount is missing, or as failed if its mount is dead.
// This record must be on disk before the agent makes the mount again or undoes it. Otherwise, after
// a crash, the next agent could find a mount that it does not recognise, or could miss a call in
// progress.
func applyDoubt(r Record, a Action) Record {
	doubt := func(s *Side, m **MountIdentity) {
		switch {
		case a.Dead && (*s == Present || *s == Unknown):
			*s, *m = Failed, nil
		case *s == Present:
			*s, *m = Unknown, nil
		}
	}

	if a.Alloc == "" {
		doubt(&r.Node.Staged, &r.Node.Mount)
		return r
	}

	c, ok := r.Claims[a.Alloc]
	switch {
	case !ok:
		return r
	case a.Path == c.At:
		doubt(&c.Bound, &c.BoundMount)
	case a.Path == c.Target:
		doubt(&c.Published, &c.Mount)
		c.Owned = false
	}

	return r.with(c)
}

// applyFree deletes a claim whose sides are all undone. The last claim remains until the volume is
// off this host. If the last claim was detached without the plugin, the volume may remain
// connected.
func applyFree(r Record, a Action) Record {
	c, ok := r.Claims[a.Alloc]
	if !ok || c.Wanted || c.Published != Absent || c.Bound != Absent {
		return r
	}
	remains := r.Node.Attached != Absent || r.Node.held()
	mayRemain := c.Without != WithPlugin || a.Early
	if len(r.Claims) == 1 && (r.Node.Staged != Absent || remains && !mayRemain) {
		return r
	}
	return clearUndone(r.without(a.Alloc))
}

// union returns the devices of both lists without duplicates.
func union(have, more []Device) []Device {
	for _, m := range more {
		if !slices.Contains(have, m) {
			have = append(slices.Clone(have), m)
		}
	}
	return have
}

// Saving says how soon a change must be on disk.
type Saving int

const (
	// SaveWithNext saves the change with the next commit of any other change.
	SaveWithNext Saving = iota
	// SaveAtOnce saves the change immediately, but the agent does not wait for the commit. If the
	// host goes down before the commit, the mounts in the change are gone too. The earlier record
	// is then still correct.
	SaveAtOnce
	// SaveFirst saves the change, and the agent waits for the commit before it takes a step that
	// depends on the change.
	SaveFirst
)

// Urgency returns how soon the agent must save a change of a record. The agent waits for the commit
// of the following changes, because the next steps depend on them:
//
//   - the intent to use another side
//   - a new or confirmed hold, because the agent attaches or mounts the volume next
//   - a hold that is no longer confirmed, will be given up or was lost, because the next agent must
//     not use it
//   - the proof that no process on this host still uses a device
//   - a failure or change of a wanted side, because the agent undoes the side and makes it again
//
// The agent saves two other changes at once, but does not wait for the commit: a claim is mounted,
// or a claim has ended. A caller may wait for these changes, but no step depends on them, and the
// intent of the claim is already on disk. If such a change were saved with the next commit, that
// commit might never come. After a crash, the next agent would then not recognise a repeated mount
// as the mount of the claim. All other changes are saved with the next commit.
func Urgency(before, now Record) Saving {
	if is, was := now.Node.Uses, before.Node.Uses; is.Attach && !was.Attach || is.Stage && !was.Stage {
		return SaveFirst
	}
	if urgentHold(before.Node.Hold, now.Node.Hold) {
		return SaveFirst
	}
	if now.Volume.Expansion != before.Volume.Expansion {
		return SaveFirst // users see the expansion, and the next claim may use the expanded volume
	}

	saving, paid := SaveWithNext, len(now.Node.PendingCalls) < len(before.Node.PendingCalls)
	switch {
	case len(before.Claims) == len(now.Claims):
	case len(now.Claims) == 0 && now.Node.Attached != Absent:
		return SaveFirst // the agent calls ControllerUnpublishVolume next, and the next agent must know that the claim has ended
	default:
		saving = SaveAtOnce
	}

	for alloc, c := range now.Claims {
		was := before.Claims[alloc]
		switch {
		case c.Wanted && paid, // otherwise the next agent would repeat the pending call, which would undo a new mount
			was.State != c.State && c.State != Mounted && c.State != ControllerDetached,
			c.Wanted && (left(was.Published, c.Published) || left(was.Bound, c.Bound) || left(before.Node.Staged, now.Node.Staged)),
			c.Wanted && before.Node.Attached != Failed && now.Node.Attached == Failed:
			return SaveFirst
		case c.State == Mounted && (was.State != Mounted || remade(was.Mount, c.Mount) || remade(was.BoundMount, c.BoundMount)):
			saving = SaveAtOnce
		}
	}

	return saving
}

// urgentHold reports whether the next agent must know a change of the hold. For example, it must
// know under which hold the volume is mounted.
func urgentHold(was, is Hold) bool {
	usable := is.State == Present || is.State == Failed
	return usable && is.State != was.State || is.Confirmed != was.Confirmed || is.Lost != was.Lost || is.Unverified != was.Unverified
}

// remade reports whether a mount was made again since the record before.
func remade(before, now *MountIdentity) bool { return now != nil && now != before }
