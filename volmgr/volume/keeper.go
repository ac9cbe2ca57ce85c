package volume

// Keeper returns the claim's owner at this point of the claim's life. Every check whether an owner
// is gone uses the keeper. It is the owner itself, unless the owner is a mount:
//
//   - Until the bind mount is made, the keeper is the process that asked for it.
//   - After that, the keeper is the bind mount, as long as it is on record.
//   - While the agent makes the mount again, the keeper has no pid and no mount, and cannot end. The
//     agent removes a mount from the record before it unmounts it.
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

// Process reports whether the owner is a process. The claim ends with that process.
func (o Owner) Process() bool { return o.Kind == OwnerPID || o.Kind == OwnerMount && o.PID != 0 }

// ByMount reports whether the owner is one mount. The claim ends with that mount.
func (o Owner) ByMount() bool { return o.Kind == OwnerMount && o.Mount != (MountIdentity{}) }

// vanished reports whether the mount that owns the claim was unmounted by another program. It knows
// only the sight of the own directory.
func (c Claim) vanished(bind Sight) bool {
	return c.Wanted && c.Keeper().ByMount() && bind.Seen == SeenNothing
}

// ownedAs reports whether a repeated request has the same owner as the claim. Once a mount that
// owns the claim exists, it does not matter which process asked for it.
func (c Claim) ownedAs(o Owner) bool {
	if c.Owner.Kind == OwnerMount && o.Kind == OwnerMount && c.State != Pending {
		return true
	}
	return c.Owner == o
}
