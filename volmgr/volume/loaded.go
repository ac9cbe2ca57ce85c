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
// before anything is mounted in its place. It reports whether that changes
// anything.
func Loaded(r Record, after Stop) (Record, bool) {
	was := r
	switch {
	case after == Stopped:
		return r, false
	case r.Volume.Expansion.offline(): // nothing was made of it since that was asked for
	case after == Crashed:
		r = doubtful(guarded(r))
	case after == Rebooted:
		r = doubtful(r)
	}
	if after.Boot() {
		r.Node.Watches, r.Node.Unseen = nil, nil
	}
	n := r.Node
	return r, n.Staged != was.Node.Staged || n.Attached != was.Node.Attached || len(n.Unseen) != len(was.Node.Unseen) ||
		!slices.Equal(n.Watches, was.Node.Watches) || !maps.Equal(r.Claims, was.Claims)
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
			c.Published = uncertain(c.Published)
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

// guarded expects late effects of the undoing calls that an agent may have died
// in. Those are of claims that are not wanted; of sides that are recorded as
// failed, which a wanted one is before it is undone; of mounts that came late;
// and of calls that were owed. A claim that died on its way up, or in use, is
// not among them, so it need not wait to be mounted again.
func guarded(r Record) Record {
	for _, w := range slices.Clone(r.Node.Watches) {
		if p := (planner{r: r}); !w.Undo && !p.explained(w) {
			r = r.guarding(w.Path, w.Alloc)
		}
	}
	leaving := false
	for _, c := range r.Ordered() {
		if c.State == NodeDetached || c.State == ControllerDetached {
			continue
		}
		leaving = leaving || !c.Wanted
		if !c.Wanted || c.Published == Failed {
			r = r.guarding(c.Target, c.Alloc)
		}
	}
	if r.Node.Uses.Stage && (leaving || r.Node.Staged == Failed) {
		r = r.guarding(r.Node.StagingPath, "")
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
	r.Debt, r.Volume.Expansion, r.Guards = true, Expansion{}, nil
	return r
}

// NextBoot is what is left of a debt once the host was started anew: of what
// was on the host nothing, but an attachment is the storage system's.
func NextBoot(r Record) Record {
	n := r.Node
	r.Claims = nil
	r.Node = NodeSide{Uses: n.Uses, Attached: n.Attached, NodeID: n.NodeID, PublishContext: n.PublishContext, AttachedReadOnly: n.AttachedReadOnly, StagingPath: n.StagingPath}
	return r.cleared()
}
