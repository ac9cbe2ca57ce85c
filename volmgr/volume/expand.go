package volume

import (
	"fmt"
	"strconv"
)

// Expansion is the growth of a volume that was asked for and is not over. The
// storage grows first (ControllerExpandVolume), then what this host has on it, as
// the file system (NodeExpandVolume). Both are durable before the call, so that
// neither a crash nor a volume that is not mounted loses them.
//
//	Expand ──► Want ──ControllerExpandVolume──► Node ──NodeExpandVolume──► (over)
//	             │ final refusal                 │ final refusal
//	             ▼                               ▼
//	          Refused, over                   Refused; once more at the next mount
type Expansion struct {
	// Want is what the controller is asked for, in bytes. It is 0 once that has
	// answered.
	Want int64 `json:"want,omitempty"`
	// Offline is set with Want where the plugin expands only what is not in use:
	// nothing of the volume was there then, and nothing is made before it is over.
	Offline bool `json:"offline,omitempty"`
	// Node is what the node service is still to be told of, in bytes; 0 is nothing.
	Node int64 `json:"node,omitempty"`
	// Refused is how the last expansion failed for good, until the next one.
	Refused Refusal `json:"refused,omitzero"`
}

// Refusal is a plugin's last word on an expansion.
type Refusal struct {
	Step    Kind   `json:"step"` // ControllerExpand or NodeExpand
	Size    int64  `json:"size"` // bytes that were asked for
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Err is the refusal as the failed call that it was.
func (f Refusal) Err() *CallError {
	return &CallError{Step: string(f.Step), Code: f.Code, Message: f.Message, Retry: RetryChange, Answered: true}
}

// offline reports whether nothing may be made of the volume for now.
func (e Expansion) offline() bool { return e.Want > 0 && e.Offline }

// Awaits reports whether a step of an expansion is still to be done; so is every
// other step.
func (e Expansion) Awaits(a Action) bool {
	switch a.Kind {
	case ControllerExpand:
		return e.Want > 0
	case NodeExpand:
		return e.nodeWants()
	default:
		return true
	}
}

// nodeRefused reports whether the node service is not asked again for now.
func (e Expansion) nodeRefused() bool { return e.Refused.Step == NodeExpand }

// nodeWants reports whether the node service is to be told.
func (e Expansion) nodeWants() bool { return e.Node > 0 && !e.nodeRefused() }

// Expanding reports whether something of an expansion is to be done now, whether
// or not the volume is on this host.
func (r Record) Expanding() bool {
	return r.Volume.Expansion.Want > 0 && r.Volume.Provision == Provisioned && !r.Debt
}

// size is what a volume has, as far as that is known, in bytes.
func (v Volume) size() int64 {
	if v.Capacity > 0 {
		return v.Capacity
	}
	return v.CapacityMin
}

// least is what a volume must have.
func (v Volume) least() int64 {
	if v.CapacityMin > 0 {
		return v.CapacityMin
	}
	return v.size()
}

// Grown is the size that a merged volume is to be expanded to first, 0 if it has
// what it must have; and the volume as it is until then.
func (v Volume) Grown(merged Volume) (Volume, int64) {
	if merged.CapacityMin <= v.size() {
		return merged, 0
	}
	size := merged.CapacityMin
	merged.CapacityMin = v.CapacityMin
	return merged, size
}

// Expand decides on a larger size and returns the record with the intent in it;
// without a change where the volume has that size, or is on its way to it.
func Expand(r Record, size int64, p PluginInfo, owners Owners) (now Record, changed bool, err error) {
	v, e := r.Volume, r.Volume.Expansion
	switch {
	case size <= 0:
		return r, false, Errorf(ErrInvalid, "%d bytes is no size", size)
	case v.Provision != Provisioned:
		return r, false, Errorf(ErrRefused, "volume %q cannot be expanded: %s did not end", v.ID, v.Provision).WithHint("volctl volume status %s", v.ID)
	case e.Want > 0 && size < e.Want && size > v.size():
		return r, false, Errorf(ErrRefused, "volume %q is being expanded to %s already, which is more than %s", v.ID, Size(e.Want), Size(size)).
			WithHint("volctl volume status %s", v.ID)
	case e.Want == size:
		return r, false, nil
	case size < v.least():
		return r, false, Errorf(ErrRefused, "volume %q has %s and cannot shrink to %s", v.ID, Size(v.size()), Size(size))
	case size <= v.size():
		if e.Want == 0 {
			r.Volume.Expansion.Refused = Refusal{} // what the node refused is tried again
		}
		return r, r.Volume.Expansion != e, nil
	case v.CapacityMax > 0 && size > v.CapacityMax:
		return r, false, Errorf(ErrRefused, "volume %q may have %s at most (capacity_max), which is less than %s", v.ID, Size(v.CapacityMax), Size(size)).
			WithHint("raise capacity_max in its file, and run: volctl volume register FILE")
	case !p.Caps.Expand && !p.Caps.NodeExpand:
		return r, false, Errorf(ErrRefused, "plugin %q cannot expand volumes", v.PluginID)
	}
	if p.Caps.Offline {
		if err := Unused(Past(r, owners)); err != nil {
			return r, false, &Error{
				Kind:    ErrRefused,
				Message: fmt.Sprintf("plugin %q expands volumes only while they are not in use, and %v", v.PluginID, err),
				Hint:    hintOf(err),
			}
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

// Expanded says whether what was asked for by Expand is done as far as it can be
// now; err is why it will not be.
func Expanded(r Record, size int64) (done bool, err error) {
	e := r.Volume.Expansion
	waiting := r.awaitsNode()
	for _, c := range r.Claims {
		waiting = waiting || c.Wanted && (c.State == Pending || r.expandAt() != "")
	}
	switch f := e.Refused; {
	case f.Size >= size && (f.Step == NodeExpand || f.Size == size || r.Volume.size() < size):
		return false, f.Err()
	case e.Want > 0:
		return false, nil
	case max(r.Volume.size(), e.Node) < size:
		return false, Errorf(nil, "plugin %q answered OK, and volume %q has %s, not the %s that were asked for; or it was withdrawn",
			r.Volume.PluginID, r.Volume.ID, Size(r.Volume.size()), Size(size)).WithHint("volctl plugin logs %s", r.Volume.PluginID)
	default:
		return e.Node == 0 || !waiting, nil
	}
}

// WithdrawExpansion gives up what is not made yet; it reports whether there was
// anything. A call that succeeds all the same counts.
func WithdrawExpansion(r Record) (now Record, withdrawn bool) {
	e := &r.Volume.Expansion
	withdrawn = e.Want > 0 || e.Node > 0
	*e = Expansion{}
	return r, withdrawn
}

// expandAt is where the node service can be asked to expand what is there: at the
// staging path, or where a volume is published that shows nothing there. It is
// empty if there is none, or none that may be written to.
func (r Record) expandAt() string {
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

// awaitsNode reports whether claims wait for the node service: a volume that is
// mounted anew has its full size before anybody is told so. Beside a claim that
// is in use already, nobody waits.
func (r Record) awaitsNode() bool {
	for _, c := range r.Claims {
		if c.State == Taken {
			return false
		}
	}
	return r.Volume.Expansion.nodeWants() && r.expandAt() != ""
}

// promoted returns the record with a claim to which a step just made something,
// which may be the last that it lacked. A bind that is on record is not, before
// it was looked at: the claim may have waited over a reboot.
func (r Record) promoted(c Claim, k Kind) Record {
	if r = r.with(c); r.awaitsNode() || c.At != "" && k != Bind && k != Take {
		return r
	}
	return r.with(c.taken())
}

// take lets a claim be taken whose mounts are all in place, and which waited for
// the node service.
func (p *planner) take(c Claim) bool {
	return c.State == Pending && p.try(Action{Kind: Take, Alloc: c.Alloc})
}

func applyTake(r Record, a Action) Record {
	if c, ok := r.Claims[a.Alloc]; ok {
		return r.promoted(c, a.Kind)
	}
	return r
}

// expand has the controller make the storage larger. What is on its way down does
// not wait for that.
func (p *planner) expand() bool {
	e := p.r.Volume.Expansion
	switch {
	case !p.r.Expanding(), len(p.claims) > 0 && !p.anyWanted():
		return false
	case p.o.Debt != "":
		return p.wait(CauseDebt, "%s", p.o.Debt)
	case p.o.AtWork != "":
		return p.wait(CauseWatch, "%s", p.o.AtWork)
	case (e.Offline || p.o.Plugin.Info.Caps.Offline) && p.inUse():
		return p.wait(CauseExpand, "plugin %q expands volumes only while they are not in use", p.r.Volume.PluginID)
	default:
		return p.try(Action{Kind: ControllerExpand, Size: e.Want})
	}
}

// inUse reports whether anything of the volume is, or may yet come, on this host.
func (p *planner) inUse() bool {
	n := p.r.Node
	return n.Attached != Absent || n.Staged != Absent || len(n.Owed) > 0 || p.anyMounted() || p.expects(func(Watch) bool { return true })
}

// nodeExpand has what this host mounted follow the storage. It returns whether the
// step was chosen, and ok if claims may be published.
func (p *planner) nodeExpand() (chosen, ok bool) {
	if !p.r.Volume.Expansion.nodeWants() {
		return false, true
	}
	path := p.r.expandAt()
	for _, c := range p.claims {
		if s := p.o.Targets[c.Alloc]; c.Target == path && (s.Seen != SeenMount || !s.Is(c.Mount)) {
			return false, true // it is mounted again first
		}
	}
	if path == "" {
		return false, true
	}
	if p.try(Action{Kind: NodeExpand, Path: path, Size: p.r.Volume.Expansion.Node}) {
		return true, false
	}
	return false, !p.r.awaitsNode()
}

// applyExpand records how far an expansion came. What was asked for meanwhile is
// kept.
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
	case a.Kind == ControllerExpand && out.Err == nil:
		got := out.Capacity
		if got <= 0 {
			got = a.Size // it does not say, and it says OK
		}
		v.Capacity = max(v.Capacity, got) // no storage is made smaller, whatever it says
		v.CapacityMin = max(v.CapacityMin, min(a.Size, v.Capacity))
		if out.NodeRequired || e.Node > 0 {
			e.Node = v.Capacity
		}
		if e.Refused = refused; a.Size >= e.Want {
			e.Want, e.Offline = 0, false
		}
	case a.Kind == ControllerExpand && a.Size == e.Want:
		e.Want, e.Offline, e.Refused = 0, false, refused
	case a.Kind == NodeExpand && out.Err == nil:
		if v.Capacity < a.Size { // there is no controller to make it so
			v.Capacity, v.CapacityMin = a.Size, max(v.CapacityMin, a.Size)
		}
		if e.Refused = refused; a.Size >= e.Node {
			e.Node = 0
		}
	case a.Kind == NodeExpand && a.Size == e.Node:
		if e.Refused = refused; v.Capacity < a.Size && refused.Code != "FailedPrecondition" {
			e.Node = 0 // nothing was made larger
		}
	}
	return r
}

// mountedAnew returns the record with what the node service refused to expand to
// be tried once more: it may have been because of how it was mounted.
func (r Record) mountedAnew() Record {
	if e := &r.Volume.Expansion; e.Node > 0 && e.nodeRefused() {
		e.Refused = Refusal{}
	}
	return r
}

// Size writes bytes as volume files do, exactly: in the largest unit that they are
// a whole number of.
func Size(bytes int64) string {
	units, i := []string{"B", "KiB", "MiB", "GiB", "TiB"}, 0
	for ; bytes > 0 && bytes%1024 == 0 && i < len(units)-1; i++ {
		bytes /= 1024
	}
	return strconv.FormatInt(bytes, 10) + units[i]
}

// expands reports whether the step is one of an expansion.
func (at *Attempt) expands() bool {
	return at != nil && (at.Action.Kind == ControllerExpand || at.Action.Kind == NodeExpand)
}

// giveUp is the command that withdraws an expansion.
func (r Record) giveUp() string {
	return Command("volctl volume expand %s --withdraw", r.Volume.ID)
}

// expansion returns the explanation with how far the expansion of a volume is.
func (e Explanation) expansion(r Record) Explanation {
	x := r.Volume.Expansion
	mounted := e.State == StateMounted || e.State == StateDegraded
	switch {
	case x.Want > 0 && (mounted || e.State == StateFree):
		e.Summary += ", expanding to " + Size(x.Want)
	case x.Want > 0:
		e.Notes = append(e.Notes, "it is being expanded to "+Size(x.Want))
	case x.nodeWants() && mounted && r.expandAt() != "":
		e.Summary += ", expanding to " + Size(x.Node)
	case x.nodeWants():
		e.Notes = append(e.Notes, fmt.Sprintf("its storage has %s; what is on it is expanded when it is mounted for writing", Size(x.Node)))
	case x.Node > 0 && mounted:
		e.State, e.Summary = StateDegraded, fmt.Sprintf("degraded: its storage has %s, what is on it was not expanded to that", Size(x.Node))
		e.Fix = Command("volctl volume expand %s %s", r.Volume.ID, Size(x.Node))
	}
	if x.Refused != (Refusal{}) {
		e.Notes = append(e.Notes, fmt.Sprintf("it could not be expanded to %s: %v", Size(x.Refused.Size), x.Refused.Err()))
	}
	return e
}
