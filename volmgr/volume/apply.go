package volume

import (
	"fmt"
	"slices"

	"github.com/volagent/volagent/volmgr/call"
)

// Apply records the outcome of a step in the record as it is now. The record may have changed since
// Next decided, and an intent that was stored in between is kept. A step that no longer fits the
// record changes nothing.
func Apply(r Record, a Action, out Outcome) (Record, []Event) {
	next := apply(r, a, out)
	return next, events(r, next, a, out)
}

func apply(r Record, a Action, out Outcome) Record {
	switch {
	case a.Kind == call.ControllerExpand, a.Kind == call.NodeExpand:
		return applyExpand(r, a, out)
	case out.Unsent:
		return r
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

// after returns the state of a side after the call that makes it. A failed call may still have had
// an effect.
func after(out Outcome) Side {
	if out.Err != nil {
		return Failed
	}
	return Present
}

// undone returns the state of a side after the call that undoes it. After a failed call, there is
// still something to undo. The code "Unimplemented" counts as success only for a side that may
// never have been made.
func undone(was Side, out Outcome) Side {
	if out.Err == nil || was == Unknown && out.Err.Code == "Unimplemented" {
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
	case call.ControllerPublish:
		n.Attached, n.Proven = after(out), false
		n.NodeID = a.NodeID
		n.AttachedReadOnly = out.ReadOnly
		n.PublishContext = out.PublishContext
		if out.Err != nil && out.Err.Uncertain() {
			r = r.watching(lateAttach)
		}
	case call.ControllerUnpublish:
		n.Attached, n.Proven = undone(n.Attached, out), false
		switch {
		case out.Err != nil && out.Err.Uncertain():
			// Even if the plugin answered, its storage system may still be working on the call.
			r = r.watching(lateDetach)
		case n.Attached == Absent && a.Sure:
			r = r.unwatched(func(w Watch) bool { return w == lateAttach })
		case n.Attached == Absent && slices.Contains(n.Watches, lateAttach):
			n.Attached = Unknown // the earlier ControllerPublishVolume may connect it again
		}

		if r.Node.Attached == Absent {
			r.Node.PublishContext, r.Node.AttachedReadOnly = nil, false
			r = r.detaching(ControllerDetached).cleared()
		}
	case Prove:
		if n.Proven = out.Err == nil; n.Proven && n.Staged == Absent {
			n.Unseen = nil
			r = r.detaching(NodeDetached)
		}
	}

	return r
}

// releasing moves the claims that are being detached to a later state.
func (r Record) detaching(s ClaimState) Record {
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

		r = r.inBoot(out.Boot).mountedAnew()
		r.Node.Mount = out.Mount
		r.Node.Devices = union(r.Node.Devices, out.Devices)
		return r
	}

	if out.Err != nil && !out.Err.Answered {
		r = r.watching(Watch{Path: a.Path, Undo: true})
	}
	if out.Err == nil {
		r = r.withoutPendingCall(call.NodeUnstage, a.Path)
	}
	if a.Pending {
		return r // the host undid this side earlier
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
			r = r.withoutPendingCall(call.NodeUnpublish, a.Path)
		}
		if !ok || c.Target != a.Path || a.Pending {
			return r // a late mount of a claim that has ended, or a pending call
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
		if r = r.inBoot(out.Boot); r.Node.Mount == nil && r.expandAt() == "" {
			r = r.mountedAnew()
		}

		r.Node.Devices = union(r.Node.Devices, out.Devices)
	}

	r.Node.Proven = false
	r = r.promoted(c, a.Kind)
	if out.StageSuspect || r.Node.refusedUnstaged(out) {
		r.Node.Staged, r.Node.Mount = Failed, nil
		if slices.ContainsFunc(r.Ordered(), func(o Claim) bool { return o.Published == Present }) {
			r.Node.Staged = Unknown // staged again without an unstage before, which would break the other claims' mounts
		}
	}

	return r
}

// refusedUnstaged reports whether the plugin refused a publish and may have lost the staging. If
// the staging shows no mount, as for a block device, such a refusal is the only sign of that.
func (n NodeSide) refusedUnstaged(out Outcome) bool {
	return out.Err != nil && out.Err.Code == "FailedPrecondition" && n.Staged == Present && n.Mount == nil
}

// applyOwn records that the volume's root has the ownership that the claim asks for. This is true
// only for the current mount of the claim.
func applyOwn(r Record, a Action, out Outcome) Record {
	c, ok := r.Claims[a.Alloc]
	if !ok || out.Err != nil || c.Published != Present || c.Target != a.Path {
		return r
	}
	c.Owned = true
	return r.promoted(c, a.Kind)
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

	return r.promoted(c, a.Kind)
}

// taken moves a wanted claim to the mounted state once all of its mounts are there.
func (c Claim) taken() Claim {
	if c.Wanted && c.State == Pending && c.Published == Present && c.owned() && (c.At == "" || c.Bound == Present) {
		c.State = Mounted
	}
	return c
}

// applyDoubt marks a side as unknown because its mount is missing, or as failed because its mount
// is dead and must be undone. This is durable before the mount is made again or undone. Otherwise,
// a crash could leave a mount that differs from the recorded one, or a call in progress that the
// next agent does not expect.
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

// applyFree deletes a claim that has nothing left to undo. The last claim needs the volume to be
// off this host. If that claim was detached without the plugin, the volume may stay connected.
func applyFree(r Record, a Action) Record {
	c, ok := r.Claims[a.Alloc]
	if !ok || c.Wanted || c.Published != Absent || c.Bound != Absent {
		return r
	}
	if len(r.Claims) == 1 && (r.Node.Staged != Absent || r.Node.Attached != Absent && c.Without == WithPlugin) {
		return r
	}
	return r.without(a.Alloc).cleared()
}

// union returns have, followed by the devices of more that it lacks.
func union(have, more []Device) []Device {
	for _, m := range more {
		if !slices.Contains(have, m) {
			have = append(slices.Clone(have), m)
		}
	}
	return have
}

// moved returns the claims of before that are missing from now or have another state there, oldest
// first. It sorts only these claims, because there may be thousands of others.
func moved(before, now Record) []Claim {
	some := map[string]Claim{}
	for alloc, c := range before.Claims {
		if n, ok := now.Claims[alloc]; !ok || n.State != c.State {
			some[alloc] = c
		}
	}

	before.Claims = some
	return before.Ordered()
}

// events describes the step and the differences between the two records.
func events(before, now Record, a Action, out Outcome) []Event {
	id := now.Volume.ID
	var evs []Event
	add := func(typ, alloc, format string, args ...any) {
		evs = append(evs, Event{Type: typ, Volume: id, Alloc: alloc, Plugin: now.Volume.PluginID, Step: string(a.Kind), Message: fmt.Sprintf(format, args...)})
	}

	switch {
	case out.Err != nil && now.Volume.Expansion.Refused != before.Volume.Expansion.Refused:
		add("expand-failed", "", "not expanded to %s: %s", Size(a.Size), out.Err.Error())
	case out.Err != nil:
		add("step-failed", a.Alloc, "%s", out.Err.Error())
	case out.Warning != "":
		add("warning", a.Alloc, "%s: %s", a.Kind, out.Warning)
	}

	if out.Err == nil {
		switch a.Kind {
		case call.ControllerPublish:
			add("attached", "", "attached to node %q", a.NodeID)
		case call.ControllerUnpublish:
			add("detached", "", "detached from node %q", a.NodeID)
		case call.NodeStage:
			add("staged", "", "staged at %s", a.Path)
		case call.NodeUnstage:
			add("unstaged", "", "unstaged from %s", a.Path)
		case call.NodePublish:
			add("published", a.Alloc, "published at %s", a.Path)
		case call.NodeUnpublish:
			add("unpublished", a.Alloc, "unpublished from %s", a.Path)
		case call.ControllerExpand:
			add("expanded", "", "the storage has %s", Size(now.Volume.Capacity))
		case call.NodeExpand:
			add("node-expanded", "", "expanded to %s at %s", Size(a.Size), a.Path)
		case Bind:
			add("bound", a.Alloc, "bound at %s", a.Path)
		case Own:
			add("owned", a.Alloc, "the root of %s has %s", a.Path, now.Claims[a.Alloc].Own.Here())
		case Unmount:
			add("unmounted", a.Alloc, "unmounted %s on the host alone; the plugin is still to be told", a.Path)
		case Unbind:
			add("unbound", a.Alloc, "unbound from %s", a.Path)
		}
	}

	for _, c := range moved(before, now) {
		switch n, ok := now.Claims[c.Alloc]; {
		case !ok:
			add("claim-detached", c.Alloc, "detached after %s", c.State)
		case n.State != c.State:
			add("claim-"+string(n.State), c.Alloc, "%s → %s", c.State, n.State)
		}
	}

	return evs
}

// Saving says how soon a change must be on disk.
type Saving int

const (
	// SaveWithNext means with the next commit of any change.
	SaveWithNext Saving = iota
	// SaveAtOnce means soon enough to outlive the agent. The agent does not wait for the commit. If the
	// host goes down before it, so do the mounts that the change describes, and the earlier record
	// leads to the same result.
	SaveAtOnce
	// SaveFirst means before any step that depends on the change.
	SaveFirst
)

// Urgency says how soon a change of a record must be on disk. The agent waits for a change that
// affects the next steps:
//
//   - the intent to use one more side
//   - the proof that nothing here uses a device any more
//   - a wanted side that failed or is no longer as recorded, because it is undone and made again
//
// A caller may wait to hear that a claim is mounted or has ended, but no step depends on that. The
// intent of the claim is on disk, and its next intent will be on disk before any step for it.
// However, no further commit may ever come after a claim was mounted anew. Without a commit, the
// next agent would not recognise the mount as that of the claim. These changes are saved at once.
// All other checkpoints are saved with the next commit.
func Urgency(before, now Record) Saving {
	if is, was := now.Node.Uses, before.Node.Uses; is.Attach && !was.Attach || is.Stage && !was.Stage {
		return SaveFirst
	}
	if now.Volume.Expansion != before.Volume.Expansion {
		return SaveFirst // users see it, and a volume that had to stay unused is used next
	}

	saving, paid := SaveWithNext, len(now.Node.PendingCalls) < len(before.Node.PendingCalls)
	switch {
	case len(before.Claims) == len(now.Claims):
	case len(now.Claims) == 0 && now.Node.Attached != Absent:
		return SaveFirst // ControllerUnpublishVolume is next, and a recorded claim would mean that it is not
	default:
		saving = SaveAtOnce
	}

	for alloc, c := range now.Claims {
		was := before.Claims[alloc]
		switch {
		case c.Wanted && paid, // otherwise the same call would be repeated and undo the next mount
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

// remade reports whether the mount is not the same as before.
func remade(before, now *MountIdentity) bool { return now != nil && now != before }
