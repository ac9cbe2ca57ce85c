package volume

// goingDown is why nothing more is done about a volume.
const goingDown = "this host is going down"

// leave takes from this host what wanted claims have on it, because the host goes
// down: their mounts, the user's own first, and then the staging. It goes by way of a
// Doubt, as a repair does, so that whoever dies in the midst of it knows what was being
// undone. The claims stay wanted and as they were, and the next boot mounts for them
// again. The attachment stays too: it outlives the boot, and to detach it may need more
// than a host has that is going down.
func (p *planner) leave() bool {
	if !p.anyWanted() {
		return false // down does the rest
	}
	for _, c := range p.claims {
		if c.Wanted && p.unpublish(c) {
			return true
		}
	}
	return p.r.Node.Staged != Absent && !p.anyMounted() && p.unstage()
}

// OnHost reports whether the volume is, or may be, mounted or staged here: what is to
// be undone before the host goes down.
func (r Record) OnHost() bool {
	p := planner{claims: r.Ordered()}
	return r.Node.Staged != Absent || p.anyPublished()
}
