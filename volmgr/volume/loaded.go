package volume

import (
	"maps"
	"slices"
)

// Stop is how the agent ended before it was started again.
type Stop int

// The ways to end.
const (
	// Crashed: it died in the midst of whatever it did. It is the zero value,
	// and true of an end that nothing is known of.
	Crashed Stop = iota
	// Rebooted: it may have died, and so did all calls and all mounts.
	Rebooted
	// Stopped: it recorded how each step ended.
	Stopped
	// Shut: so it did, and the host was started anew since.
	Shut
)

// Boot reports whether the host was started anew since.
func (s Stop) Boot() bool { return s == Rebooted || s == Shut }

// Loaded is the record as it must be read when the agent starts: unless it was
// stopped in order, every side that is not recorded as settled is uncertain,
// because checkpoints between two intents need not have reached the disk. After
// a crash a plugin may moreover still be at work on the call in which the agent
// died: one that mounts is watched for, and one that unmounts is waited for
// before anything is mounted in its place. A call that attaches or detaches may go on
// at the storage system even after a reboot of this host. It reports whether that
// changes anything.
//
// Blocked says that a debt of the same storage is on record. No call was made for the
// new record then, because Next makes none before the debt is paid.
func Loaded(r Record, after Stop, blocked bool) (Record, bool) {
	was := r
	switch {
	case after == Stopped:
		return r, false
	case r.Volume.Expansion.offline(): // nothing was made of it since that was asked for
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

// onHost selects the watches for late mounts and unmounts, which a reboot ends.
func onHost(w Watch) bool { return !w.Attachment }

// untouched reports whether no side of the record was ever made.
func (r Record) untouched() bool {
	p := planner{claims: r.Ordered()}
	return r.Node.Attached == Absent && r.Node.Staged == Absent && len(r.Node.Owed) == 0 && !p.anyPublished()
}

// guardedAttachment expects late effects of the calls on the attachment that the agent
// may have died in. A ControllerUnpublishVolume is made only once one of these is on
// disk: a claim that has left the node, a volume without claims, or an attachment that
// failed. A ControllerPublishVolume is made for a claim that is still on the node.
func guardedAttachment(r Record) Record {
	n, active, detaching := r.Node, false, len(r.Claims) == 0
	for _, c := range r.Claims {
		left := c.State == NodeDetached || c.State == ControllerDetached
		active, detaching = active || !left, detaching || left
	}
	// A claim found the volume attached although no other claim was left, or the agent
	// died before. In the second case only a ControllerPublishVolume was made since.
	found := n.Attached == Unknown && !slices.Contains(n.Watches, lateAttach)
	if n.Attached != Absent && (detaching || found || n.Attached == Failed) {
		r = r.watching(lateDetach)
	}
	if n.Uses.Attach && active && (n.Attached != Present || detaching) {
		r = r.watching(lateAttach)
	}
	return r
}

// doubtful is the record with every side uncertain that is not settled, and a
// watch on those that a call may yet make.
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
		n.Staged = Unknown // it may have been undone, and no look would tell
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

// uncertain is a side that may have been made since.
func uncertain(s Side) Side {
	if s == Absent {
		return Unknown
	}
	return s
}

// maybePublished is uncertain for a target. A call that was negated may still mount something
// there, perhaps with the options of an earlier claim, so the target is undone first.
func (r Record) maybePublished(c Claim) Side {
	if p := (planner{r: r}); c.Published == Absent && p.watched(c.Target) {
		return Failed
	}
	return uncertain(c.Published)
}

// guarded expects late effects of the undoing calls that an agent may have died
// in. Those are of claims that are not wanted; of sides that are recorded as
// failed, which a wanted one is before it is undone; of mounts that came late;
// and of calls that were owed. A claim that died on its way up, or in use, is
// not among them, so it need not wait to be mounted again. Nor is the staging of a
// volume with such a claim in use, which is not unstaged under that claim.
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
			r.Node.Staged = Unknown // the unstage may have got half-way; staging again is right
		}
	}
	for _, d := range r.Node.Owed {
		r = r.guarding(d.Path, d.Alloc)
	}
	return r
}

func (r Record) guarding(path, alloc string) Record {
	return r.watching(Watch{Path: path, Alloc: alloc, Undo: true})
}

// Owing is the record of a forced deregister as a debt: what its claims still
// have on this host is to be undone by the plugin, and every side that is not
// settled is uncertain, because a call may be in flight. How that ends is still
// to be applied.
func Owing(r Record) Record {
	r = doubtful(r)
	for _, c := range r.Ordered() {
		if c.Without = WithPlugin; c != r.Claims[c.Alloc] {
			r = r.with(c)
		}
	}
	r.Debt, r.Volume.Expansion = true, Expansion{}
	return r
}

// NextBoot is what is left of a debt once the host was started anew: of what
// was on the host nothing, but an attachment is the storage system's.
func NextBoot(r Record) Record {
	r = r.unwatched(onHost)
	n := r.Node
	r.Claims = nil
	r.Node = NodeSide{Watches: n.Watches, Uses: n.Uses, Attached: n.Attached, NodeID: n.NodeID, PublishContext: n.PublishContext, AttachedReadOnly: n.AttachedReadOnly, StagingPath: n.StagingPath}
	return r.cleared()
}
