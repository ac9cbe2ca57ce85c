package volume

import (
	"fmt"
	"slices"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
)

// State is the state of a volume in one word, as command output shows it first.
type State string

// These are the states of a volume.
const (
	StateFree      State = "free"
	StateMounting  State = "mounting"
	StateMounted   State = "mounted"
	StateDegraded  State = "degraded"
	StateDetaching State = "detaching"
	StateStuck     State = "stuck"
)

// stuckAfter is the number of consecutive failures after which a volume counts as stuck. A smaller
// number of failures needs no attention from a person.
const stuckAfter = 3

// Explanation describes the state of a volume for people.
type Explanation struct {
	State   State
	Summary string
	Notes   []string
	Fix     remedy.Remedy // empty if no remedy is known
	Else    remedy.Remedy // the remedy to use if Fix does not help
}

// Explain explains a volume's state, based on the record, the current observation and the last
// attempt. Like Next, Explain has no side effects and accepts any arguments.
func Explain(r Record, o Observed, at *Attempt) Explanation {
	e := Explanation{}
	e.State, e.Summary = standing(r, o)
	e.Notes = append(adoptedNote(r), r.Volume.inDoubt()...)
	if o.Leftover != "" && e.State == StateFree {
		e.State, e.Summary = StateDetaching, "detaching: "+o.Leftover
	}
	if r.Volume.Provision != Provisioned {
		return provisioning(r, o, at)
	}

	doing := map[State]string{StateMounting: "mounting", StateDetaching: "unmounting", StateDegraded: "repairing"}[e.State]
	for _, u := range r.Node.Unseen {
		e.Notes = append(e.Notes, u.words())
	}

	e = e.expansion(r)
	a := Next(r, o)
	switch {
	case at.heldElsewhere():
		e.Summary = string(e.State) + ", waiting for another host"
		e.Notes = append(e.Notes, at.Err.Message)
	case at.failing() && at.expands() && (e.State == StateMounted || e.State == StateDegraded):
		e.State, e.Summary = StateDegraded, "degraded: it cannot be expanded to "+Size(at.Action.Size)
		e.Fix = o.Plugin.LogRemedy(r.Volume.PluginID)
		e.Else = withdrawExpansion(r)
	case at.failing():
		switch {
		case doing != "":
		case at.expands():
			doing = "expanding to " + Size(at.Action.Size)
		default:
			doing = string(at.Action.Kind)
		}

		e.State, e.Summary = StateStuck, "stuck: "+doing
		if e.Fix, e.Else = fix(r, o, at.Action); at.expands() {
			e.Else = withdrawExpansion(r)
		}
		if !at.Err.Remedy.Empty() {
			e.Fix = at.Err.Remedy
		}
	default:
		e = e.waiting(r, o, a)
	}

	if lack := r.Lack(o.Plugin); lack != "" && a.Cause != CausePlugin && r.Held() {
		if o.Plugin.ReadyFor(call.NodePublish) {
			e.Summary += ", no controller available"
		} else {
			e.Summary += ", plugin unavailable"
		}

		e.Notes = append(e.Notes, lack)
	}

	if r.trusted() {
		e.Notes = append(e.Notes, "the cluster has not confirmed the hold of this host since its reboot (boot: trust-local)")
	}
	if e = e.withPendingCalls(r, o, at); e.Else.Equal(e.Fix) {
		e.Else = remedy.Remedy{}
	}

	return e
}

// waiting adds the reason for which the volume waits to an explanation.
func (e Explanation) waiting(r Record, o Observed, a Action) Explanation {
	switch {
	case a.Kind != Wait:
	case a.Cause == CausePlugin:
		e.Summary += ", plugin unavailable"
		e.Notes = append(e.Notes, a.Reason)
		e.Fix, e.Else = o.Plugin.Remedy(r.Volume.PluginID), wayOut(r, "")
	case a.Cause == CauseCluster:
		e.Summary += ", cluster not reachable"
		e.Notes = append(e.Notes, a.Reason)
	case a.Cause == CauseHalted:
		e.State, e.Summary = StateStuck, "stuck: the agent sends no call"
	case a.Cause == CauseHung && unchecked(r.Ordered(), r, o): // the check of a mount has not finished, but the mount may be healthy
	case a.Cause == CauseForeign || a.Cause == CauseHung || a.Cause == CauseInvalid:
		e.State, e.Summary = StateStuck, "stuck: "+a.Reason
	case a.Cause == CauseWatch || a.Cause == CauseLeftover || a.Cause == CauseExpand || a.Cause == CauseOwner:
		e.Notes = append(e.Notes, a.Reason)
	}

	return e
}

// provisioning explains a volume whose create or delete is running or was interrupted. Such a
// volume has no side on this host.
func provisioning(r Record, o Observed, at *Attempt) Explanation {
	state, again := StateMounting, r.Volume.createAgain()
	if r.Volume.Provision == Deleting {
		state, again = StateDetaching, remedy.Of(remedy.DeleteVolume, r.Volume.ID)
	}
	if at != nil && at.Running && (at.Action.Kind == call.CreateVolume || at.Action.Kind == call.DeleteVolume) {
		return Explanation{State: state, Summary: string(r.Volume.Provision)}
	}

	notes := []string{fmt.Sprintf("%s was begun and has not been seen to end", r.Volume.Provision)}
	if o.AtWork != "" {
		notes = append(notes, o.AtWork+"; the next call waits for that")
	}

	return Explanation{
		State: StateStuck, Summary: "stuck: " + string(r.Volume.Provision),
		Notes: notes,
		Fix:   again, Else: remedy.Of(remedy.ForceDeregister, r.Volume.ID),
	}
}

// standing returns the state of a volume and a summary, based only on the record and the observed
// mounts. It ignores the plugin and the last attempt.
func standing(r Record, o Observed) (State, string) {
	claims := r.Ordered()
	wanted := slices.DeleteFunc(slices.Clone(claims), func(c Claim) bool { return !c.Wanted })
	switch {
	case r.Node.Hold.Lost && r.left():
		return StateDetaching, "detaching, this host has lost its hold"
	case o.Down && r.left():
		return StateDetaching, "taken off this host, which is going down"
	case len(claims) == 0 && r.Node.Attached != Absent:
		return StateDetaching, "detaching, pending calls (" + pendingCallKinds(r) + ")"
	case len(claims) == 0 && r.Node.held():
		return StateDetaching, "detaching, the hold is given up next"
	case len(claims) == 0 && len(r.Node.PendingCalls) > 0:
		return StateFree, "free, pending calls (" + pendingCallKinds(r) + ")"
	case len(wanted) == 0 && r.Held():
		return StateDetaching, "detaching"
	case len(wanted) == 0:
		return StateFree, "free"
	}

	writable := false
	for _, c := range wanted {
		if c.State != Mounted {
			return StateMounting, "mounting"
		}

		writable = writable || !c.ReadOnly
	}

	if bad := amiss(wanted, r, o); bad != "" {
		return StateDegraded, "degraded: " + bad
	}

	summary := "mounted, read-only"
	if writable {
		summary = "mounted, writable"
	}
	if unchecked(wanted, r, o) {
		summary += ", not checked now: the host is busy"
	}

	return StateMounted, summary
}

// unchecked reports whether the agent could not check one of the mounts within the time limit.
func unchecked(wanted []Claim, r Record, o Observed) bool {
	return r.Node.Mount != nil && o.Staging.Unchecked || slices.ContainsFunc(wanted, func(c Claim) bool {
		return o.Targets[c.Alloc].Unchecked || c.At != "" && o.Binds[c.Alloc].Unchecked
	})
}

// amiss describes the first observed mount that differs from the record. It returns "" if all
// mounts agree with the record.
func amiss(wanted []Claim, r Record, o Observed) string {
	if s := o.Staging; r.Node.Mount != nil && !s.Unchecked && !s.Is(r.Node.Mount) {
		return fmt.Sprintf("the staged mount at %s is %s", r.Node.StagingPath, s.describe())
	}

	for _, c := range wanted {
		if s := o.Targets[c.Alloc]; c.Published != Present || !s.Unchecked && !s.Is(c.Mount) {
			return fmt.Sprintf("the mount of %q at %s is %s", c.Alloc, c.Target, s.describe())
		}
		if s := o.Binds[c.Alloc]; c.At != "" && (c.Bound != Present || !s.Unchecked && !s.Is(c.BoundMount)) {
			return fmt.Sprintf("the mount of %q at %s is %s", c.Alloc, c.At, s.describe())
		}
	}

	return ""
}

func (s Sight) describe() string {
	switch s.Seen {
	case SeenNothing:
		return "not there"
	case SeenMount:
		return "not the one that was made"
	case SeenDead:
		return "dead: " + s.Detail
	case SeenHung:
		return "hung: " + s.Detail
	default:
		return "unreadable: " + s.Detail
	}
}

// fix returns a remedy for a failed step, and a second remedy in case the first does not help.
func fix(r Record, o Observed, a Action) (first, second remedy.Remedy) {
	force := remedy.Of(remedy.ForceDeregister, r.Volume.ID)
	switch {
	case a.Wanted() && a.Alloc != "":
		return remedy.Of(remedy.DetachClaim, r.Volume.ID, a.Alloc), remedy.Remedy{}
	case a.Forward(), a.Pending, a.Kind == call.ControllerExpand, a.Kind == call.NodeExpand:
		return o.Plugin.LogRemedy(r.Volume.PluginID), remedy.Remedy{}
	case a.How != WithPlugin && a.How.Stronger() == WithPlugin:
		return force, remedy.Remedy{}
	case a.How != WithPlugin, a.Kind == call.NodeUnpublish, a.Kind == call.NodeUnstage, a.Kind == Unbind:
		if out := wayOut(r, a.Alloc); !out.Empty() {
			return out, out
		}
	}

	return force, remedy.Remedy{}
}

// wayOut returns the remedy that detaches a claim without its plugin, and permits a lazy unmount.
// If alloc is empty, wayOut chooses the first claim that is being detached. The remedy is empty if
// no such claim exists, or if a user has already requested a lazy unmount of the claim.
func wayOut(r Record, alloc string) remedy.Remedy {
	for _, c := range r.Ordered() {
		if !c.Wanted && c.Without != ByLazy && (alloc == "" || c.Alloc == alloc) {
			return remedy.Of(remedy.DetachWithout, r.Volume.ID, c.Alloc, string(ByLazy))
		}
	}
	return remedy.Remedy{}
}

// Droppable returns nil if a forced deregister may drop the claims of the volume. For that, every
// claim must be detaching. If a claim has no owner, a user must first request its detach.
func Droppable(r Record) error {
	for _, c := range r.Ordered() {
		if c.Wanted {
			owned := ""
			if c.Owner.Mortal() {
				owned = ", owned by " + c.Keeper().String()
			}

			return Errorf(ErrRefused, "volume %q is claimed by %q (%s%s), which is alive", r.Volume.ID, c.Alloc, c.State, owned).
				WithRemedy(c.freedBy(r.Volume.ID))
		}
	}

	return nil
}

// InBrief returns the same state as Explain, but without a check of the host: it assumes that every
// recorded mount is present. The agent uses it to list many volumes.
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

// stuck reports whether a person must act before a Wait with this cause can end.
func (c Cause) stuck() bool {
	return c == CauseForeign || c == CauseHung || c == CauseInvalid || c == CauseHalted
}

// asRecorded returns an observation in which every recorded mount is present.
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

// expansion adds a text about the progress of the volume's expansion to the explanation.
func (e Explanation) expansion(r Record) Explanation {
	x := r.Volume.Expansion
	mounted := e.State == StateMounted || e.State == StateDegraded
	switch {
	case x.Want > 0 && (mounted || e.State == StateFree):
		e.Summary += ", expanding to " + Size(x.Want)
	case x.Want > 0:
		e.Notes = append(e.Notes, "it is being expanded to "+Size(x.Want))
	case x.nodeWants() && mounted && expansionPath(r) != "":
		e.Summary += ", expanding to " + Size(x.Node)
	case x.nodeWants():
		e.Notes = append(e.Notes, fmt.Sprintf("its storage has %s; its contents are expanded when it is mounted for writing", Size(x.Node)))
	case x.Node > 0 && mounted:
		e.State, e.Summary = StateDegraded, fmt.Sprintf("degraded: its storage has %s, but its contents were not expanded to that size", Size(x.Node))
		e.Fix = remedy.Of(remedy.ExpandVolume, r.Volume.ID, Size(x.Node))
	}

	if x.Refused != (Refusal{}) {
		e.Notes = append(e.Notes, fmt.Sprintf("it could not be expanded to %s: %v", Size(x.Refused.Size), x.Refused.Err()))
	}

	return e
}

// withPendingCalls adds the state of pending calls to the explanation. The calls belong to the
// volume itself, or to a forced deregister of the same storage.
func (e Explanation) withPendingCalls(r Record, o Observed, at *Attempt) Explanation {
	switch {
	case o.Leftover != "" && o.Pending != nil:
		r, at = *o.Pending, o.PendingTry
	case o.Leftover != "" || len(r.PendingCalls()) == 0 || at == nil || !at.Action.Pending && at.Action.Kind != call.ControllerUnpublish && at.Action.Kind != Prove:
		return e
	}

	calls := r.PendingCallState(at, o.Plugin)
	if !calls.Failed {
		return e
	}

	note := calls.How
	if o.Leftover != "" { // the explanation already contains the last error of the calls
		note = fmt.Sprintf("to end the pending calls: %s; %s", suggest.Words(calls.GiveUp), givingUp)
	}

	e.Notes = append(e.Notes, note)
	if e.Fix.Empty() {
		e.Fix = remedy.Of(remedy.ShowPluginLog, r.Volume.PluginID)
	}

	e.Else = calls.GiveUp
	return e
}
