package volume

import (
	"maps"
	"slices"
)

// Stop describes how the previous agent ended.
type Stop int

// The ways in which an agent ends.
const (
	// Crashed: the agent died during its work. It is the zero value and also means an unknown end.
	Crashed Stop = iota
	// Rebooted: the agent may have died, and the reboot ended all calls and all mounts.
	Rebooted
	// Stopped: the agent recorded how each step ended.
	Stopped
	// Shut: as Stopped, and the host was restarted since.
	Shut
)

// Boot reports whether the host was restarted since.
func (s Stop) Boot() bool { return s == Rebooted || s == Shut }

// Loaded returns the record as the agent must read it at its start, and whether that changes the
// record. If the previous agent was not stopped cleanly, every side that is not recorded as settled
// is unknown. The reason is that checkpoints between two intents may not have reached the disk.
//
// After a crash, a plugin may also still be working on the last call of the agent. For a call that
// mounts, the agent watches for the mount. For a call that unmounts, the agent waits before it
// mounts anything in that place. A ControllerPublishVolume or ControllerUnpublishVolume may
// continue at the storage system even after a reboot of this host.
//
// blocked is set if there are pending calls of a forced deregister for the same storage. In that
// case no call was made for the new record, because Next makes these calls first.
func Loaded(r Record, after Stop, blocked bool) (Record, bool) {
	was := r
	switch {
	case after == Stopped:
		return r, false
	case r.Volume.Expansion.offline(): // nothing was made since the expansion was requested
	case blocked && r.untouched():
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
	return r, n.Staged != was.Node.Staged || n.Attached != was.Node.Attached || len(n.Unseen) != len(was.Node.Unseen) ||
		!slices.Equal(n.Watches, was.Node.Watches) || !maps.Equal(r.Claims, was.Claims)
}

// onHost selects the watches for late mounts and unmounts. A reboot ends these.
func onHost(w Watch) bool { return !w.Attachment }

// untouched reports whether no side of the record was ever made.
func (r Record) untouched() bool {
	p := planner{claims: r.Ordered()}
	return r.Node.Attached == Absent && r.Node.Staged == Absent && len(r.Node.PendingCalls) == 0 && !p.anyPublished()
}

// guardedAttachment adds watches for the ControllerPublishVolume or ControllerUnpublishVolume in
// which the agent may have died. A ControllerUnpublishVolume is made only once one of these is on
// disk: a claim that has left the node, a volume without claims, or a connected side that failed. A
// ControllerPublishVolume is made for a claim that is still on the node.
func guardedAttachment(r Record) Record {
	n, active, detaching := r.Node, false, len(r.Claims) == 0
	for _, c := range r.Claims {
		left := c.State == NodeDetached || c.State == ControllerDetached
		active, detaching = active || !left, detaching || left
	}

	// The state is unknown for one of two reasons. Either a claim found the volume still connected
	// when no other claim was left, or an earlier agent died. In the second case, only a
	// ControllerPublishVolume was made since.
	found := n.Attached == Unknown && !slices.Contains(n.Watches, lateAttach)
	if n.Attached != Absent && (detaching || found || n.Attached == Failed) {
		r = r.watching(lateDetach)
	}
	if n.Uses.Attach && active && (n.Attached != Present || detaching) {
		r = r.watching(lateAttach)
	}

	return r
}

// doubtful returns the record with every unsettled side unknown, and with watches for the mounts
// that a call may still make.
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
			c.Published = r.maybePublished(c)
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
		n.Staged = Unknown // it may have been undone, and no check can show that
	case n.Uses.Stage && n.Staged != Present && active:
		n.Staged = uncertain(n.Staged)
		r = r.watching(Watch{Path: n.StagingPath})
	}

	switch {
	case n.Attached == Present && (detaching || len(r.Claims) == 0):
		n.Attached = Unknown
	case n.Uses.Attach && len(r.Claims) > 0:
		n.Attached = uncertain(n.Attached)
	}

	return r
}

// uncertain returns the state of a side that may have been made since.
func uncertain(s Side) Side {
	if s == Absent {
		return Unknown
	}
	return s
}

// maybePublished is uncertain for a target. A call that was already undone may still mount
// something there, perhaps with the options of an earlier claim. Such a target is undone first.
func (r Record) maybePublished(c Claim) Side {
	if p := (planner{r: r}); c.Published == Absent && p.watched(c.Target) {
		return Failed
	}
	return uncertain(c.Published)
}

// guarded adds watches for the undoing calls in which an agent may have died. These are the calls
// for:
//
//   - claims that are no longer wanted
//   - sides that are recorded as failed, as a wanted side is before it is undone
//   - mounts that appeared late
//   - pending calls
//
// A claim that was being mounted or was in use is not among them, so it is mounted again without a
// wait. The staging of a volume with such a claim in use is not among them either, because the
// agent does not unstage it under that claim.
func guarded(r Record) Record {
	for _, w := range slices.Clone(r.Node.Watches) {
		if p := (planner{r: r}); !w.Undo && !w.Attachment && !p.explained(w) {
			r = r.guarding(w.Path, w.Alloc)
		}
	}

	leaving, held := false, false
	for _, c := range r.Ordered() {
		if c.State == NodeDetached || c.State == ControllerDetached {
			continue
		}

		leaving, held = leaving || !c.Wanted, held || c.Wanted && c.Published == Present
		if !c.Wanted || c.Published == Failed {
			r = r.guarding(c.Target, c.Alloc)
		}
	}

	if r.Node.Uses.Stage && !held && (leaving || r.Node.Staged == Failed) {
		r = r.guarding(r.Node.StagingPath, "")
		if r.Node.Staged == Present {
			r.Node.Staged = Unknown // the unstage may be half done; it is safe to stage again
		}
	}

	for _, d := range r.Node.PendingCalls {
		r = r.guarding(d.Path, d.Alloc)
	}

	return r
}

func (r Record) guarding(path, alloc string) Record {
	return r.watching(Watch{Path: path, Alloc: alloc, Undo: true})
}

// LeftoverOf returns the record that a forced deregister keeps. The plugin must undo everything that its
// claims still have on this host. Every unsettled side is unknown, because a call may be in
// progress. The outcome of that call is applied later.
func LeftoverOf(r Record) Record {
	r = doubtful(r)
	for _, c := range r.Ordered() {
		if c.Without = WithPlugin; c != r.Claims[c.Alloc] {
			r = r.with(c)
		}
	}

	r.Leftover, r.Volume.Expansion = true, Expansion{}
	return r
}

// NextBoot returns the record of a forced deregister after a reboot. Nothing of it remains on the
// host. The volume may still be connected, because that is a state of the storage system.
func NextBoot(r Record) Record {
	r = r.unwatched(onHost)
	n := r.Node
	r.Claims = nil
	r.Node = NodeSide{Watches: n.Watches, Uses: n.Uses, Attached: n.Attached, NodeID: n.NodeID, PublishContext: n.PublishContext, AttachedReadOnly: n.AttachedReadOnly, StagingPath: n.StagingPath}
	return r.cleared()
}
