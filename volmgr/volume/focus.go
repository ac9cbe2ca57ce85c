package volume

// Focus returns the record with those claims alone that a turn has to look at: the ones that are
// not settled, the ones that are known not to be in place, and one settled claim that stands
// for all others. Without it a claim would cost more the more claims its volume has.
//
// Next decides the same for both records as long as the claims that were left out are in place,
// which a full look at the volume has shown before. It reports false, with the whole record,
// where the volume is in a state in which every claim may matter.
func (r Record) Focus(misplaced map[string]bool) (Record, bool) {
	n := r.Node
	staged := n.Staged == Present || n.Staged == Absent && !n.Uses.Stage
	attached := n.Attached == Present || n.Attached == Absent && !n.Uses.Attach
	expanding := r.Expanding() || r.Volume.Expansion.Node != 0 // the node expands at the oldest claim
	pending := len(n.Watches) > 0 || len(n.Owed) > 0 || expanding || r.Debt
	if !staged || !attached || pending {
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

// settled reports whether everything that the claim wants is recorded as made.
func (c Claim) settled() bool {
	bound := c.At == "" || c.Bound == Present
	return c.Wanted && c.State == Taken && c.Published == Present && c.owned() && bound
}

// OutOfPlace returns the settled claims whose mounts are not the ones that were made for them.
func (r Record) OutOfPlace(o Observed) map[string]bool {
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

// StandsFor reports whether an observation of a record that Focus returned shows the staging and
// the settled claims in place, less the misplaced ones. Where it does not, the claims that were left
// out may not be in place either.
func (r Record) StandsFor(o Observed, misplaced map[string]bool) bool {
	if o.Down || o.Staging.Seen == SeenDead { // all claims are taken down
		return false
	}
	if n := r.Node; n.Staged == Present {
		staged := o.Staging.Seen == SeenMount && o.Staging.Is(n.Mount)
		if n.Mount == nil { // staging shows no mount; a reboot undid it all the same
			staged = n.Boot == o.Boot
		}
		if !staged {
			return false
		}
	}
	for alloc := range r.OutOfPlace(o) {
		if !misplaced[alloc] {
			return false
		}
	}
	return true
}
