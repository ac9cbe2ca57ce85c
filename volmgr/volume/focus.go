package volume

// Focus returns the record with only those claims that a turn must examine. These are the claims
// that are not settled, the misplaced ones, and one settled claim that represents all others.
// Without Focus, the cost of each claim would grow with the number of claims on its volume.
//
// Next decides the same for both records as long as the omitted claims are in place, which an
// earlier full check has shown. If the volume is in a state in which every claim may matter, Focus
// returns the whole record and false.
func (r Record) Focus(misplaced map[string]bool) (Record, bool) {
	n := r.Node
	staged := n.Staged == Present || n.Staged == Absent && !n.Uses.Stage
	attached := n.Attached == Present || n.Attached == Absent && !n.Uses.Attach
	expanding := r.Expanding() || r.Volume.Expansion.Node != 0 // NodeExpandVolume is called for the oldest claim
	pending := len(n.Watches) > 0 || len(n.PendingCalls) > 0 || expanding || r.Leftover
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
	return c.Wanted && c.State == Mounted && c.Published == Present && c.owned() && bound
}

// OutOfPlace returns the settled claims whose mounts are not the recorded ones.
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

// StandsFor reports whether an observation of a record from Focus shows the staging and the settled
// claims in place, apart from the misplaced ones. If it does not, the omitted claims may be out of
// place too.
func (r Record) StandsFor(o Observed, misplaced map[string]bool) bool {
	if o.Down || o.Staging.Seen == SeenDead { // all claims are unmounted then
		return false
	}
	if n := r.Node; n.Staged == Present {
		staged := o.Staging.Seen == SeenMount && o.Staging.Is(n.Mount)
		if n.Mount == nil { // a reboot also undoes a staging that shows no mount
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
