package volume

import (
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
)

// offline reports whether the plugin must expand the volume before the agent connects or mounts it.
func (e Expansion) offline() bool { return e.Want > 0 && e.Offline }

// Awaits reports whether the step a is still needed. It returns false only for an expansion step
// whose size has already been reached.
func (e Expansion) Awaits(a Action) bool {
	switch a.Kind {
	case call.ControllerExpand:
		return e.Want > 0
	case call.NodeExpand:
		return e.nodeWants()
	default:
		return true
	}
}

// nodeRefused reports whether the node service refused the size. The agent then sends no
// NodeExpandVolume until the refusal is cleared.
func (e Expansion) nodeRefused() bool { return e.Refused.Step == call.NodeExpand }

// nodeWants reports whether the agent must call NodeExpandVolume.
func (e Expansion) nodeWants() bool { return e.Node > 0 && !e.nodeRefused() }

// Expanding reports whether the controller must still expand the storage. The controller can do so
// even if the volume is not on this host.
func (r Record) Expanding() bool {
	return r.Volume.Expansion.Want > 0 && r.Volume.Provision == Provisioned && !r.Leftover
}

// size returns the size of the volume in bytes, as far as it is known.
func (v Volume) size() int64 {
	if v.Capacity > 0 {
		return v.Capacity
	}
	return v.CapacityMin
}

// least returns the smallest size, in bytes, that the volume may have.
func (v Volume) least() int64 {
	if v.CapacityMin > 0 {
		return v.CapacityMin
	}
	return v.size()
}

// Grown compares a volume with the definition that will replace it. If the definition requires a
// larger size, Grown returns that size in bytes, and the definition to store until the volume has
// that size. Otherwise the size is 0.
func (v Volume) Grown(merged Volume) (Volume, int64) {
	if merged.CapacityMin <= v.size() {
		return merged, 0
	}
	size := merged.CapacityMin
	merged.CapacityMin = v.CapacityMin
	return merged, size
}

// Expand checks a request for a larger size and returns the record with the intent to expand. If
// the volume already has that size or is being expanded to it, Expand changes nothing.
func Expand(r Record, size int64, p plugin.Info, owners Owners) (now Record, changed bool, err error) {
	v, e := r.Volume, r.Volume.Expansion
	switch {
	case size <= 0:
		return r, false, Errorf(ErrInvalid, "%d bytes is not a valid size", size)
	case v.Provision != Provisioned:
		return r, false, Errorf(ErrRefused, "volume %q cannot be expanded: %s did not end", v.ID, v.Provision).WithRemedy(remedy.Of(remedy.ShowVolume, v.ID))
	case e.Want > 0 && size < e.Want && size > v.size():
		return r, false, Errorf(ErrRefused, "volume %q is being expanded to %s already, which is more than %s", v.ID, Size(e.Want), Size(size)).
			WithRemedy(remedy.Of(remedy.ShowVolume, v.ID))
	case e.Want == size:
		return r, false, nil
	case size < v.least():
		return r, false, Errorf(ErrRefused, "volume %q has %s and cannot shrink to %s", v.ID, Size(v.size()), Size(size))
	case size <= v.size():
		if e.Want == 0 {
			r.Volume.Expansion.Refused = Refusal{} // the new request allows the node to be asked again for a size that it refused
		}

		return r, r.Volume.Expansion != e, nil
	case v.CapacityMax > 0 && size > v.CapacityMax:
		return r, false, Errorf(ErrRefused, "volume %q may have %s at most (capacity_max), which is less than %s", v.ID, Size(v.CapacityMax), Size(size)).
			WithRemedy(remedy.Of(remedy.RaiseCapacityMax))
	case !p.Caps.Expand && !p.Caps.NodeExpand:
		return r, false, Errorf(ErrRefused, "plugin %q cannot expand volumes", v.PluginID)
	}

	if p.Caps.Offline {
		if err := Unused(Past(r, owners)); err != nil {
			return r, false, Errorf(ErrRefused, "plugin %q expands volumes only while they are not in use, and %v", v.PluginID, err).
				WithRemedy(remedyOf(err))
		}
	}

	e.Refused = Refusal{}
	if p.Caps.Expand {
		e.Want, e.Offline = size, p.Caps.Offline
	} else {
		e.Node = size
	}

	r.Volume.Expansion = e
	return r, true, nil
}

// Expanded reports whether all steps of an expansion to size that are possible now are done. It
// returns an error if the expansion will not finish.
func Expanded(r Record, size int64) (done bool, err error) {
	e := r.Volume.Expansion
	waiting := awaitsNodeExpand(r)
	for _, c := range r.Claims {
		waiting = waiting || c.Wanted && (c.State == Pending || expansionPath(r) != "")
	}

	switch f := e.Refused; {
	case f.Size >= size && (f.Step == call.NodeExpand || f.Size == size || r.Volume.size() < size):
		return false, f.Err()
	case e.Want > 0:
		return false, nil
	case max(r.Volume.size(), e.Node) < size:
		return false, Errorf(nil, "plugin %q answered OK, and volume %q has %s, not the %s that were asked for; or it was withdrawn",
			r.Volume.PluginID, r.Volume.ID, Size(r.Volume.size()), Size(size)).WithRemedy(remedy.Of(remedy.ShowPluginLog, r.Volume.PluginID))
	default:
		return e.Node == 0 || !waiting, nil
	}
}

// WithdrawExpansion cancels an unfinished expansion, and reports whether there was one. A call that
// is already in progress may still expand the volume.
func WithdrawExpansion(r Record) (now Record, withdrawn bool) {
	e := &r.Volume.Expansion
	withdrawn = e.Want > 0 || e.Node > 0
	*e = Expansion{}
	return r, withdrawn
}

// expansionPath returns the path for NodeExpandVolume. If staging made a mount, it is the staging
// path. Otherwise it is the target of a published claim. expansionPath returns "" if the volume is
// not mounted, or only mounted read-only.
func expansionPath(r Record) string {
	if m := r.Node.Mode; m == nil || !m.Access.Writable() {
		return ""
	}
	if r.Node.Staged == Present && r.Node.Mount != nil {
		return r.Node.StagingPath
	}

	for _, c := range r.Ordered() {
		if c.Wanted && c.Published == Present && !c.ReadOnly {
			return c.Target
		}
	}

	return ""
}

// awaitsNodeExpand reports whether claims must wait for NodeExpandVolume. The first claim counts as
// mounted only after the volume has its full size. If a claim already uses the volume, further
// claims do not wait.
func awaitsNodeExpand(r Record) bool {
	for _, c := range r.Claims {
		if c.State == Mounted {
			return false
		}
	}
	return r.Volume.Expansion.nodeWants() && expansionPath(r) != ""
}

// promoteClaim returns the record with the claim c after the step k. It marks the claim as mounted
// if the claim needs nothing else. If the claim has an own directory, only the steps Bind and Take
// can complete it, because its bind mount may have disappeared in a reboot.
func promoteClaim(r Record, c Claim, k call.Method) Record {
	if r = r.with(c); awaitsNodeExpand(r) || c.At != "" && k != Bind && k != Take {
		return r
	}
	return r.with(c.taken())
}

// take chooses the step that marks a claim as mounted. All mounts of the claim are in place, and it
// only waited for NodeExpandVolume.
func (p upPlanner) take(c Claim) bool {
	return c.State == Pending && p.try(Action{Kind: Take, Alloc: c.Alloc})
}

func applyTake(r Record, a Action) Record {
	if c, ok := r.Claims[a.Alloc]; ok {
		return promoteClaim(r, c, a.Kind)
	}
	return r
}

// expand chooses the expansion of the storage by the controller. It does nothing for a volume that
// the agent is taking off the host.
func (p upPlanner) expand() bool {
	e := p.r.Volume.Expansion
	switch {
	case !p.r.Expanding(), len(p.claims) > 0 && !p.anyWanted():
		return false
	case p.o.Leftover != "":
		return p.wait(CauseLeftover, "%s", p.o.Leftover)
	case p.o.AtWork != "":
		return p.wait(CauseWatch, "%s", p.o.AtWork)
	case (e.Offline || p.o.Plugin.Info.Caps.Offline) && p.inUse():
		return p.wait(CauseExpand, "plugin %q expands volumes only while they are not in use", p.r.Volume.PluginID)
	default:
		return p.try(Action{Kind: call.ControllerExpand, Size: e.Want})
	}
}

// inUse reports whether the volume is, or may be, connected, staged or published on this host.
func (p upPlanner) inUse() bool {
	n := p.r.Node
	return n.Attached != Absent || n.Staged != Absent || len(n.PendingCalls) > 0 || p.anyMounted() || p.expects(func(Watch) bool { return true })
}

// nodeExpand chooses NodeExpandVolume if the storage of a mounted volume has grown. The result named
// chosen is true if a step was chosen. The result named ok is true if the agent may publish claims.
func (p upPlanner) nodeExpand() (chosen, ok bool) {
	if !p.r.Volume.Expansion.nodeWants() {
		return false, true
	}

	path := expansionPath(p.r)
	for _, c := range p.claims {
		if s := p.o.Targets[c.Alloc]; c.Target == path && (s.Seen != SeenMount || !s.Is(c.Mount)) {
			return false, true // the agent must first mount the target again
		}
	}

	if path == "" {
		return false, true
	}
	if p.try(Action{Kind: call.NodeExpand, Path: path, Size: p.r.Volume.Expansion.Node}) {
		return true, false
	}

	return false, !awaitsNodeExpand(p.r)
}

// applyExpand records the outcome of an expansion step. If a user requested a larger size during
// the call, applyExpand keeps that request.
func applyExpand(r Record, a Action, out Outcome) Record {
	v := &r.Volume
	e := &v.Expansion

	refused := Refusal{}
	if out.Err != nil {
		if !out.Err.Final() {
			return r
		}

		refused = Refusal{Step: a.Kind, Size: a.Size, Code: out.Err.Code, Message: out.Err.Message}
	}

	switch {
	case a.Kind == call.ControllerExpand && out.Err == nil:
		got := out.Capacity
		if got <= 0 {
			got = a.Size // the plugin answered OK but did not report the size
		}

		v.Capacity = max(v.Capacity, got) // storage never shrinks, even if the plugin reports a smaller size
		v.CapacityMin = max(v.CapacityMin, min(a.Size, v.Capacity))
		if out.NodeRequired || e.Node > 0 {
			e.Node = v.Capacity
		}
		if e.Refused = refused; a.Size >= e.Want {
			e.Want, e.Offline = 0, false
		}
	case a.Kind == call.ControllerExpand && a.Size == e.Want:
		e.Want, e.Offline, e.Refused = 0, false, refused
	case a.Kind == call.NodeExpand && out.Err == nil:
		if v.Capacity < a.Size { // without a controller, only this call reports the size
			v.Capacity, v.CapacityMin = a.Size, max(v.CapacityMin, a.Size)
		}
		if e.Refused = refused; a.Size >= e.Node {
			e.Node = 0
		}
	case a.Kind == call.NodeExpand && a.Size == e.Node:
		if e.Refused = refused; v.Capacity < a.Size && refused.Code != CodeFailedPrecondition {
			e.Node = 0 // the storage itself did not grow, so a retry is useless
		}
	}

	return r
}

// allowNodeExpand clears a refusal of NodeExpandVolume, so that the agent sends the call again. The
// plugin may have refused the call because of the previous mount.
func allowNodeExpand(r Record) Record {
	if e := &r.Volume.Expansion; e.Node > 0 && e.nodeRefused() {
		e.Refused = Refusal{}
	}
	return r
}

// withdrawExpansion returns the remedy that withdraws an expansion.
func withdrawExpansion(r Record) remedy.Remedy {
	return remedy.Of(remedy.WithdrawExpand, r.Volume.ID)
}
