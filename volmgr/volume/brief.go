package volume

// InBrief returns the state of a volume as Explain does, but without a look at the host. It assumes
// that every recorded mount is present, and it considers the last attempt. It is for listings of
// many volumes.
func InBrief(r Record, at *Attempt) State {
	switch {
	case r.Volume.Provision != Provisioned:
		return provisioning(r, Observed{}, at).State
	case at.failing() && !at.expands():
		return StateStuck
	case at != nil && at.Action.Kind == Wait && at.Action.Cause.stuck():
		return StateStuck
	}

	state, _ := standing(r, asRecorded(r))
	switch e := (Explanation{State: state}).expansion(r); {
	case !at.failing():
		return e.State
	case state == StateMounted || state == StateDegraded:
		return StateDegraded
	default:
		return StateStuck
	}
}

// stuck reports whether a wait for this cause ends only after a person acts.
func (c Cause) stuck() bool {
	return c == CauseForeign || c == CauseHung || c == CauseInvalid || c == CauseHalted
}

// asRecorded returns the observation of a host on which every recorded mount is present.
func asRecorded(r Record) Observed {
	o := Observed{Targets: make(map[string]Sight, len(r.Claims)), Binds: map[string]Sight{}}
	if r.Node.Mount != nil {
		o.Staging = Sight{Seen: SeenMount, Identity: *r.Node.Mount}
	}

	for alloc, c := range r.Claims {
		if c.Mount != nil {
			o.Targets[alloc] = Sight{Seen: SeenMount, Identity: *c.Mount}
		}
		if c.BoundMount != nil {
			o.Binds[alloc] = Sight{Seen: SeenMount, Identity: *c.BoundMount}
		}
	}

	return o
}
