package volume

// goingDown is the reason why the agent does nothing more for a volume.
const goingDown = "this host is going down"

// leave unmounts the volume from this host although claims want it, because the host goes down. The
// bind mounts at own directories come first, then the targets, then the staging path. As in a
// repair, a Doubt is recorded first. After a crash, it tells the next agent which mount was being
// undone.
//
// The claims stay wanted and unchanged, and the next boot mounts the volume for them again. The
// storage stays connected, because that outlives the boot. ControllerUnpublishVolume may also need
// services that a host that is going down no longer has.
func (p *planner) leave() bool {
	if !p.anyWanted() {
		return false // down handles the rest
	}

	for _, c := range p.claims {
		if c.Wanted && p.unpublish(c) {
			return true
		}
	}

	return p.r.Node.Staged != Absent && !p.anyMounted() && p.unstage()
}

// OnHost reports whether the volume is, or may be, mounted or staged on this host. Such a volume
// must be unmounted before the host goes down.
func (r Record) OnHost() bool {
	p := planner{claims: r.Ordered()}
	return r.Node.Staged != Absent || p.anyPublished()
}
