package volume

// Keeper is the claim's owner as it is at this point of the claim's life. Whoever
// asks whether an owner is gone asks for the keeper. It is the owner itself, but for
// one that is a mount:
//
//   - until the bind was made it is the process that asked for it;
//   - then it is that very mount, for as long as it is on record;
//   - and while the agent itself makes the mount anew it is nobody who can end, which
//     no pid and no mount stand for. What the agent unmounts is off the record before.
//
// Two keepers are the same if they are equal.
func (c Claim) Keeper() Owner {
	o := c.Owner
	if o.Kind != OwnerMount {
		return o
	}
	o.Dir = c.At
	switch {
	case c.Bound == Present && c.BoundMount != nil:
		o.PID, o.StartTime, o.Mount = 0, 0, *c.BoundMount
	case c.State != Pending:
		o.PID, o.StartTime = 0, 0
	}
	return o
}

// Process reports whether the owner is a process: it ends with that.
func (o Owner) Process() bool { return o.Kind == OwnerPID || o.Kind == OwnerMount && o.PID != 0 }

// ByMount reports whether the owner is one mount: it ends with that.
func (o Owner) ByMount() bool { return o.Kind == OwnerMount && o.Mount != (MountIdentity{}) }

// vanished reports whether somebody took away the mount that the claim lives by, as
// far as a look at its directory tells.
func (c Claim) vanished(bind Sight) bool {
	return c.Wanted && c.Keeper().ByMount() && bind.Seen == SeenNothing
}

// ownedAs reports whether another request for the claim has the owner that it has.
// Of a mount that is there it does not matter who asked for it.
func (c Claim) ownedAs(o Owner) bool {
	if c.Owner.Kind == OwnerMount && o.Kind == OwnerMount && c.State != Pending {
		return true
	}
	return c.Owner == o
}
