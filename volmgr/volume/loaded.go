package volume

import (
	"maps"
	"slices"
)

// Stop describes how the previous agent ended.
type Stop int

// These are the ways in which an agent can end.
const (
	// Crashed means that the agent died during its work. Crashed is the zero value, and is also
	// used if the end of the agent is unknown.
	Crashed Stop = iota
	// Rebooted means that the host was restarted, and that the agent may have died before. The
	// reboot ended all calls and all mounts.
	Rebooted
	// Stopped means that the agent ended cleanly after it had recorded the result of each step.
	Stopped
	// Shut means that the agent ended cleanly, and that the host was restarted afterwards.
	Shut
)

// Boot reports whether the host was restarted after the end of the previous agent.
func (s Stop) Boot() bool { return s == Rebooted || s == Shut }

// Loaded returns the record in the form in which the agent must use it after a start. It also
// reports whether this record differs from the stored one. After an unclean stop, every side that
// is not recorded as settled becomes unknown, because the last checkpoints may not have reached the
// disk.
//
// After a crash, a plugin may still be working on the last call. If this call makes a mount, the
// agent watches for the mount. If this call unmounts, the agent waits before it mounts anything at
// the same path. The storage system may continue a ControllerPublishVolume or
// ControllerUnpublishVolume even after a reboot.
//
// Loaded also clears the fields that exist only in memory, because a test may keep the record of an
// agent that has died. That agent may have acted on its proof of unmount.
//
// The parameter blocked is set if a forced deregister of the same storage has pending calls. Next
// makes the pending calls first, so no call was made for the new record yet.
func Loaded(r Record, after Stop, blocked bool) (Record, bool) {
	r.Node.Proven, r.Node.Hold.Before = false, Kept{}
	was := r
	r.Node.Hold = loadedHold(r, after, blocked)
	switch {
	case after == Stopped:
		return r, false
	case r.Volume.Expansion.offline(): // the agent makes no side until the expansion has ended
	case blocked && neverMounted(r), withoutSides(was):
	case after == Crashed:
		r = doubtful(guarded(guardedAttachment(r)))
	case after == Rebooted:
		r = doubtful(guardedAttachment(r.unwatched(onHost)))
	}

	if after.Boot() {
		r.Node.Unseen = nil
		r = r.unwatched(onHost)
	}

	n := r.Node
	return r, n.Hold != was.Node.Hold || n.Staged != was.Node.Staged || n.Attached != was.Node.Attached || len(n.Unseen) != len(was.Node.Unseen) ||
		!slices.Equal(n.Watches, was.Node.Watches) || !maps.Equal(r.Claims, was.Claims)
}

// onHost reports whether a watch expects a late mount or unmount on this host. After a reboot, the
// agent drops these watches.
func onHost(w Watch) bool { return !w.Attachment }

// neverMounted reports whether the record shows no side that was ever made.
func neverMounted(r Record) bool {
	p := planner{claims: r.Ordered()}
	return r.Node.Attached == Absent && r.Node.Staged == Absent && len(r.Node.PendingCalls) == 0 && !p.anyPublished()
}

// guardedAttachment adds watches for a ControllerPublishVolume or ControllerUnpublishVolume that
// may have been in progress when the agent died. The agent calls ControllerUnpublishVolume only
// after one of these states is on disk: a claim has left the node, the volume has no claims, or the
// connected side has failed. It calls ControllerPublishVolume only if a claim has not left the
// node.
func guardedAttachment(r Record) Record {
	if r.Node.Hold.Lost {
		return r // the next holder is responsible for the attachment
	}

	n, active, detaching := r.Node, false, len(r.Claims) == 0 && !r.Node.Hold.Confirmed
	for _, c := range r.Claims {
		left := c.State == NodeDetached || c.State == ControllerDetached
		active, detaching = active || !left, detaching || left
	}

	// There are two possible reasons for the state Unknown. A new claim may have found the volume
	// still connected after the end of all other claims. Or an earlier agent died, after it had
	// sent only a ControllerPublishVolume.
	found := n.Attached == Unknown && !slices.Contains(n.Watches, lateAttach)
	if n.Attached != Absent && (detaching || found || n.Attached == Failed) {
		r = r.watching(lateDetach)
	}
	if n.Uses.Attach && active && (n.Attached != Present || detaching) {
		r = r.watching(lateAttach)
	}

	return r
}

// doubtful returns a record in which every unsettled side is unknown. It adds watches for the
// mounts that a call in progress may still make.
func doubtful(r Record) Record {
	n := &r.Node
	detaching, active, held := false, false, false
	for _, c := range r.Ordered() {
		if c.State == NodeDetached || c.State == ControllerDetached {
			detaching = true
			continue
		}

		active, held = true, held || c.Wanted && c.Published == Present
		if c.Published != Present {
			c.Published = stateAfterCrash(r, c)
			r = r.watching(Watch{Path: c.Target, Alloc: c.Alloc})
		}
		if c.At != "" {
			c.Bound = uncertain(c.Bound)
		}
		if c != r.Claims[c.Alloc] {
			r = r.with(c)
		}
	}

	switch {
	case n.Staged == Present && n.Mount == nil && !held:
		n.Staged = Unknown // the agent may have unstaged the volume, which no check can show
	case n.Uses.Stage && n.Staged != Present && active:
		n.Staged = uncertain(n.Staged)
		r = r.watching(Watch{Path: n.StagingPath})
	}

	switch {
	case n.Attached == Present && (detaching || len(r.Claims) == 0 && !n.Hold.Confirmed):
		n.Attached = Unknown
	case n.Uses.Attach && len(r.Claims) > 0 && !n.Hold.Lost:
		n.Attached = uncertain(n.Attached)
	}

	return r
}

// uncertain returns Unknown for an absent side, because the previous agent may have made the side
// after its last commit. All other states do not change.
func uncertain(s Side) Side {
	if s == Absent {
		return Unknown
	}
	return s
}

// stateAfterCrash returns the state of a target that the previous agent may have published. If a
// watch expects a late mount at the target, the state is Failed, so the agent undoes the target
// first. The reason is that the late mount may have the options of an earlier claim.
func stateAfterCrash(r Record, c Claim) Side {
	if p := (planner{r: r}); c.Published == Absent && p.watched(c.Target) {
		return Failed
	}
	return uncertain(c.Published)
}

// guarded adds watches for calls that may have been undoing a mount when the agent died. The agent
// may have made such a call for:
//
//   - a claim that is no longer wanted
//   - a failed side (even for a wanted claim, the agent marks a side as failed before it undoes
//     the side)
//   - a mount that appeared late
//   - a pending call
//
// The target of any other wanted claim gets no watch, so the agent mounts it again without waiting.
// The staging gets no watch while a wanted claim is published, because the agent does not unstage
// such a volume.
func guarded(r Record) Record {
	for _, w := range slices.Clone(r.Node.Watches) {
		if p := (planner{r: r}); !w.Undo && !w.Attachment && !p.explained(w) {
			r = watchUndo(r, w.Path, w.Alloc)
		}
	}

	leaving, held := false, false
	for _, c := range r.Ordered() {
		if c.State == NodeDetached || c.State == ControllerDetached {
			continue
		}

		leaving, held = leaving || !c.Wanted, held || c.Wanted && c.Published == Present
		if !c.Wanted || c.Published == Failed {
			r = watchUndo(r, c.Target, c.Alloc)
		}
	}

	if r.Node.Uses.Stage && !held && (leaving || r.Node.Staged == Failed) {
		r = watchUndo(r, r.Node.StagingPath, "")
		if r.Node.Staged == Present {
			r.Node.Staged = Unknown // the unstage may be half done, and the agent can safely stage again
		}
	}

	for _, d := range r.Node.PendingCalls {
		r = watchUndo(r, d.Path, d.Alloc)
	}

	return r
}

func watchUndo(r Record, path, alloc string) Record {
	return r.watching(Watch{Path: path, Alloc: alloc, Undo: true})
}

// LeftoverOf returns the record that the agent keeps after a forced deregister. The plugin must
// undo every side that the claims still have on this host. Every unsettled side becomes unknown,
// because a call may be in progress. If so, the agent applies the outcome of this call later.
func LeftoverOf(r Record) Record {
	if !withoutSides(r) {
		r = doubtful(r)
	}
	for _, c := range r.Ordered() {
		if c.Without = WithPlugin; c != r.Claims[c.Alloc] {
			r = r.with(c)
		}
	}

	r.Leftover, r.Volume.Expansion = true, Expansion{}
	return r
}

// NextBoot returns the record of a forced deregister after a reboot. The reboot removed every mount
// from the host. The volume may still be connected, because the storage system remembers the
// connection.
func NextBoot(r Record) Record {
	r = r.unwatched(onHost)
	n := r.Node
	r.Claims = nil
	r.Node = NodeSide{Hold: n.Hold, Watches: n.Watches, Uses: n.Uses, Attached: n.Attached, NodeID: n.NodeID, PublishContext: n.PublishContext, AttachedReadOnly: n.AttachedReadOnly, StagingPath: n.StagingPath}
	return clearUndone(r)
}
