package volume

import (
	"fmt"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
)

// These steps change the hold of this host on a shared volume. They are transactions in the
// cluster's store.
const (
	Acquire call.Method = "acquire-hold" // get the hold, or verify it after a crash or a reboot
	Confirm call.Method = "confirm-hold" // record the attachment, before the first mount
	GiveUp  call.Method = "give-up-hold" // delete the hold, after a proof of unmount
)

// CodeNoExecutor is the code of a CallError for a controller call that no host of the cluster can make
// now. The call was not sent. A host that has only just got its hold gives the hold up, because
// another host may be able to use the volume.
const CodeNoExecutor = "NoExecutor"

// CodeHeld is the code of a CallError for an Acquire that another host prevents. The agent retries
// when that host changes its hold.
const CodeHeld = "Held"

// Token identifies one hold of a volume. Each later hold of the same volume has a greater token.
type Token struct {
	Epoch    int64 `json:"epoch,omitempty"`    // epoch of the cluster, which a restore raises
	Revision int64 `json:"revision,omitempty"` // revision in which the hold was created
}

// Before reports whether the token is older than another one.
func (t Token) Before(o Token) bool {
	return t.Epoch < o.Epoch || t.Epoch == o.Epoch && t.Revision < o.Revision
}

// String formats the token for people.
func (t Token) String() string { return fmt.Sprintf("%d.%d", t.Epoch, t.Revision) }

// Hold is the right of this host to use a shared volume. It is the first side that the agent makes
// for a shared volume, and the last one that it undoes. The other sides may exist only while the
// hold is Present.
//
//	(absent) ──Acquire──► present ──ControllerPublish──► ──Confirm──► confirmed ──► NodeStage …
//	    ▲        │ error, crash                                            │ last release
//	    │        ▼                                                         ▼
//	    │     unknown ──Acquire──► present                  Prove, ControllerUnpublish
//	    │        │                                                         │
//	    │        └────── Prove ──────► failed ◄────────── Prove ───────────┘
//	    └──────────── GiveUp ────────────┘
//
// After a reboot, the state is unknown until an Acquire has verified the hold. While the store does not
// answer, a Trust makes the hold of some volumes present without that; see Volume.Boot.
//
// A failed hold is being given up, and no other side exists. The agent stores this state before the
// first GiveUp. After a crash or a lost answer, a new claim can therefore not use this hold. The
// store may have given the volume to another host, or a late GiveUp may still end the hold.
type Hold struct {
	State Side `json:"state,omitempty"`

	// Operation names the acquisition. The agent stores the name before the first Acquire, and
	// repeats it after a crash or a lost answer. The store can therefore tell a repetition from a
	// second acquisition.
	Operation string `json:"operation,omitempty"`

	Token  Token           `json:"token,omitzero"`
	Access call.AccessMode `json:"access,omitempty"`
	Reader bool            `json:"reader,omitempty"` // this host only reads; other hosts may write
	Since  time.Time       `json:"since,omitzero"`

	// Confirmed is set if the store shows the attachment as made. The agent mounts the volume only
	// after that. A volume without ControllerPublishVolume needs no confirmation.
	Confirmed bool `json:"confirmed,omitempty"`

	// Before is the hold before the last proof of unmount. It is valid until the agent has sent a step
	// that detaches the volume or gives up the hold.
	Before Kept `json:"-"`

	// Unverified is set if the host had the hold before its last reboot, and the store has not shown the
	// hold since then. The state is Unknown, or Present after a Trust.
	Unverified bool `json:"unverified,omitempty"`

	// Unfit is set on an earlier hold of this host that does not fit its claims. The agent gives it up, and
	// then gets another hold for the claims.
	Unfit bool `json:"unfit,omitempty"`

	// Lost is set if the store no longer shows the hold. Another host may use the volume, so the
	// agent only undoes the mounts on this host. It makes no controller call.
	Lost bool `json:"lost,omitempty"`
}

// Kept is the part of a hold that a proof of unmount changes. The zero value means that no proof has
// changed it.
type Kept struct {
	State     Side
	Confirmed bool
}

// Cluster is the state of the cluster, as this host sees it.
type Cluster struct {
	// Away says why this host can change nothing in the cluster now. It is empty if the host is
	// registered and the store answers.
	Away string

	// Silent is set together with Away if the only reason is that the store does not answer. It is not
	// set while the store is asked for the first time, or if the store has refused this host.
	Silent bool
}

// clustered reports whether a step needs the cluster's store.
func (r Record) clustered(a Action) bool {
	if !r.Volume.Shared || r.Node.Hold.Lost {
		return false
	}

	switch a.Kind {
	case Acquire, Confirm, GiveUp, call.ControllerPublish, call.ControllerUnpublish, call.ControllerExpand:
		return true
	default:
		return false
	}
}

// usable reports whether the agent may make further sides under the hold.
func (h Hold) usable() bool { return h.State == Present && !h.Lost }

// holdUp chooses the step that makes the hold ready for the next side. The result ok reports that
// no step is necessary.
func (p upPlanner) holdUp() (chosen, ok bool) {
	if !p.r.Volume.Shared {
		return false, true
	}

	h := p.r.Node.Hold
	switch {
	case h.Lost:
		return false, false // the mounts are undone first
	case h.usable() && p.unserved() && p.bare():
		return p.try(Action{Kind: Prove, Yield: true}), false // another host may be able to use the volume
	case h.usable():
		return false, true
	case h.State == Absent && p.unserved():
		return p.wait(CausePlugin, "%s", p.o.Plugin.Lacks(p.r.Volume.PluginID, call.ControllerPublish)), false
	case h.State == Absent && p.o.Parked[Action{Kind: call.ControllerPublish}.Key()]:
		return p.wait(CauseBackoff, "%s failed and is not due yet", call.ControllerPublish), false
	case h.State == Failed:
		return p.try(Action{Kind: GiveUp}), false // an earlier GiveUp may still end the hold
	case h.Unfit:
		return p.endUnfit(), false
	case p.trusts():
		return p.try(Action{Kind: Trust}), false
	default:
		return p.try(Action{Kind: Acquire}), false
	}
}

// unserved reports whether no host of the cluster can make the controller calls for the volume, or
// whether it is not known yet which host can. A hold that the host trusts needs no such call: the
// record shows that the volume was used without one.
func (p *planner) unserved() bool {
	return p.o.Plugin.Unasked(call.ControllerPublish) && !p.r.trusted()
}

// bare reports whether the host has made no side under its hold, and no late effect can make one.
func (p *planner) bare() bool {
	n := p.r.Node
	return n.Attached == Absent && n.Staged == Absent && !p.anyPublished() && len(n.Watches) == 0 && len(n.PendingCalls) == 0
}

// confirmUp chooses the step that records the attachment in the store. The result ok reports that
// no step is necessary.
func (p upPlanner) confirmUp() (chosen, ok bool) {
	if n := p.r.Node; !p.r.Volume.Shared || n.Attached != Present || n.Hold.Confirmed {
		return false, true
	}
	if p.expects(func(w Watch) bool { return w == lateAttach }) {
		// An earlier call could attach the volume again after another host has detached this one as the
		// proof that it cannot write.
		return p.wait(CauseWatch, "an earlier %s of unknown outcome may still arrive; the volume is mounted after that", call.ControllerPublish), false
	}
	return p.try(Action{Kind: Confirm}), false
}

// Mounted reports whether the host has mounted the volume, or may have.
func (r Record) Mounted() bool {
	p := &planner{r: r, claims: r.Ordered()}
	return r.Node.Staged != Absent || p.anyPublished()
}

// holdDown chooses the step that gives up the hold. It requires that no other side is left. The
// proof of unmount must be at most as old as the last mount. The proof also marks the hold as
// failed.
func (p *planner) holdDown() bool {
	n := p.r.Node
	switch {
	case len(n.PendingCalls) > 0:
		return false // the planner has already noted why the pending calls must wait
	case p.expects(func(w Watch) bool { return w != lateDetach }):
		return p.wait(CauseWatch, "a call of unknown outcome may still attach or mount the volume; the host keeps its hold until then")
	case !n.Proven || n.Hold.State != Failed && !n.Hold.Lost:
		return p.try(Action{Kind: Prove})
	default:
		return p.try(Action{Kind: GiveUp})
	}
}

// keepsHold reports whether a volume without claims keeps its hold and its attachment, because the
// cluster's store is not reachable. The agent makes no proof then, because a new claim may use both.
func (p *planner) keepsHold() bool {
	n := p.r.Node
	return p.r.Volume.Shared && p.o.Cluster.Away != "" && len(p.claims) == 0 && n.held() && !n.Hold.Lost
}

// freesEarly reports whether the last claim ends before the hold, because the cluster's store is
// not reachable. The hold and the attachment are then given up later.
func (p *planner) freesEarly() bool {
	return p.r.Volume.Shared && p.o.Cluster.Away != "" && len(p.claims) == 1
}

// held reports whether the record has a hold, or may have one.
func (n NodeSide) held() bool { return n.Hold.State != Absent }

func applyHold(r Record, a Action, out Outcome) Record {
	h := &r.Node.Hold
	switch {
	case a.Kind == GiveUp && out.Err == nil:
		return clearUndone(r.withoutHold())
	case h.Lost:
		return r // the hold was lost during the step
	}

	switch a.Kind {
	case Acquire:
		return applyAcquire(r, out)
	case Trust:
		if h.State == Unknown && h.Unverified {
			h.State = Present
		}
	case Confirm:
		if h.Confirmed = out.Err == nil; !h.Confirmed && out.Err.Answered && out.Err.Code == CodeHeld && r.Node.Attached == Present {
			r.Node.Attached = Unknown // another host has taken the attachment over, and has undone it
		}
	case GiveUp:
		h.State, h.Confirmed, h.Before = Failed, false, Kept{}
	}

	return r
}

// applyAcquire records the answer to an Acquire. After a refusal, the hold is absent only if no
// earlier attempt can still take effect.
func applyAcquire(r Record, out Outcome) Record {
	n := &r.Node
	n.Hold.Unverified = false
	switch {
	case out.Err == nil:
		if n.Hold.Token != out.Token && n.Attached == Present {
			n.Attached = Unknown // the attachment was made under an earlier hold, which has ended
		}

		n.Hold.State, n.Hold.Confirmed, n.Hold.Before = Present, false, Kept{}
		n.Hold.Token, n.Hold.Since = out.Token, out.Since
	case !out.Err.Answered || n.Hold.State != Absent:
		n.Hold.State = Unknown
	}

	return r
}

// withoutHold returns the record after the host has given up its hold. If a claim was admitted
// during that, or needs another hold, the next Acquire uses the operation of the ended hold again. It asks
// only for the right that the remaining claims need.
func (r Record) withoutHold() Record {
	h := r.Node.Hold
	r.Node.Hold = Hold{}
	wanted := slices.DeleteFunc(r.Ordered(), func(c Claim) bool { return !c.Wanted })
	if !h.Lost && len(wanted) > 0 {
		writes := slices.ContainsFunc(wanted, func(c Claim) bool { return !c.ReadOnly || c.Adopted })
		access := h.Access
		if m := r.Node.Mode; h.Unfit && m != nil {
			access = m.Access
		}
		r.Node.Hold = Hold{Operation: h.Operation, Access: access, Reader: access == call.MultiNodeSingleWriter && !writes}
	}

	return r
}

// proveHold returns the record of a shared volume after a proof of unmount. From now on, the agent
// may detach the volume, and may give up its hold if the volume is not attached. While claims want the
// volume, it gives up the hold only if yield is set.
func proveHold(r Record, yield bool) Record {
	n := &r.Node
	kept := !yield && slices.ContainsFunc(r.Ordered(), func(c Claim) bool { return c.Wanted })
	if !n.held() || n.Hold.Lost || kept {
		return r
	}

	if n.Hold.State == Present {
		n.Hold.Before = Kept{State: Present, Confirmed: n.Hold.Confirmed}
	}

	n.Hold.Confirmed = false
	if n.Attached == Absent && n.Staged == Absent {
		n.Hold.State = Failed
	}
	return r
}

// unsentHold returns the record after a step that should detach the volume or give up its hold, but
// sent nothing. The hold is then as it was before the proof, and serves further claims. If no host can
// attach the volume, the host gives up a hold under which nothing was made.
func unsentHold(r Record, a Action, out Outcome) Record {
	h := &r.Node.Hold
	unserved := a.Kind == call.ControllerPublish && out.Err != nil && out.Err.Code == CodeNoExecutor
	if p := (&planner{r: r, claims: r.Ordered()}); unserved && h.usable() && p.bare() {
		h.State, h.Before = Failed, Kept{}
		return r
	}

	detaches := a.Kind == call.ControllerUnpublish || a.Kind == GiveUp
	if !detaches || h.Lost || h.Before == (Kept{}) {
		return r
	}

	h.State, h.Confirmed = h.Before.State, h.Before.Confirmed
	h.Before, r.Node.Proven = Kept{}, false
	return r
}

// loadedHold returns the hold in the form in which the agent must use it after a start.
func loadedHold(r Record, after Stop, blocked bool) Hold {
	h := r.Node.Hold
	switch {
	case h.Operation == "" || after == Stopped:
		return h
	case h.State == Absent && blocked:
		return h // the agent has not acquired the hold yet
	case after.Boot():
		h.Unverified = h.State == Present || h.State == Unknown && h.Unverified
		h.State, h.Confirmed = Unknown, false
	case h.State == Absent:
		h.State = Unknown
	}

	return h
}

// doubtHold returns the record with an unknown hold. A record that does not come from the newest
// state database can never show that this host has a hold. The operation remains, so that the agent
// can verify the hold or give it up.
func doubtHold(r Record) Record {
	h := &r.Node.Hold
	if h.Operation == "" {
		*h = Hold{}
		return r
	}

	h.State, h.Confirmed, h.Unverified = Unknown, false, false
	return r
}

// withoutSides reports whether the record of a shared volume shows that no other side was made. The
// agent stores a hold as present before it makes the first side.
func withoutSides(r Record) bool {
	return r.Volume.Shared && r.Node.Hold.State != Present && neverMounted(r)
}

// beginHold returns the record of a shared volume with the intent to acquire a hold. The parameter
// operation must be unique in the cluster.
func beginHold(r Record, req Request, mode *Mode) Record {
	if !r.Volume.Shared || r.Node.held() {
		return r
	}

	r.Node.Hold = Hold{Operation: req.Operation, Access: mode.Access, Reader: readsOnly(req, mode)}
	return r
}

// readsOnly reports whether a first claim needs only the right to read, beside a writer on another
// host.
func readsOnly(req Request, mode *Mode) bool {
	return req.ReadOnly && mode.Access == call.MultiNodeSingleWriter
}

// fitsHold refuses a claim that needs another hold than the one that this host has.
func fitsHold(r Record, req Request, mode *Mode) error {
	h := r.Node.Hold
	if !r.Volume.Shared || !r.Node.held() && len(r.Claims) == 0 {
		return nil
	}
	if h.Unfit && !h.Lost && len(r.Claims) > 0 {
		return nil // the claims get another hold
	}

	kind := ErrRefused
	if len(r.Claims) == 0 {
		kind = ErrDetaching // the host gives up the hold
	}

	id := r.Volume.ID
	switch {
	case h.Lost:
		return Errorf(ErrDetaching, "this host has lost its hold on volume %q, and is unmounting it", id).
			WithRemedy(remedy.Of(remedy.ShowVolume, id))
	case h.Access != mode.Access:
		return Errorf(kind, "this host holds volume %q in mode %s; %s must wait until the host has given it up", id, h.Access, mode.Access).
			WithRemedy(remedy.Of(remedy.ShowVolume, id))
	case h.Reader && !req.ReadOnly:
		return Errorf(kind, "this host holds volume %q as a reader; a writer must wait until its readers here are detached", id).
			WithRemedy(remedy.Of(remedy.ShowVolume, id))
	}

	return nil
}

// LoseHold returns the record of a shared volume after its hold was lost. All claims end, because
// another host may use the volume. The storage is no longer connected for this host, or the next
// holder disconnects it.
func LoseHold(r Record) (Record, []Event) {
	if !r.Volume.Shared || !r.Node.held() || r.Node.Hold.Lost {
		return r, nil
	}
	if r.Node.Hold.State == Failed {
		return r, nil // the host is giving the hold up, and has undone all sides
	}

	was := r
	r.Node.Hold.Lost, r.Node.Hold.Confirmed = true, false
	r.Node.Attached, r.Node.PublishContext, r.Node.AttachedReadOnly = Absent, nil, false
	r = r.unwatched(func(w Watch) bool { return w.Attachment })
	for _, c := range r.Ordered() {
		if c.Wanted {
			r = r.with(c.unwanted())
		}
	}

	evs := []Event{{Type: EventHoldLost, Volume: r.Volume.ID, Plugin: r.Volume.PluginID, Message: fmt.Sprintf("the cluster no longer shows this host's hold of %s", was.Node.Hold.Since.Format(time.RFC3339))}}
	return r, append(evs, events(was, r, Action{}, Outcome{})...)
}

// DoubtAttachment returns the record of a shared volume after another host has ended a controller call
// for this host, or has seen that the volume is not attached. The result changed is false if the
// record has another hold, or does not show an attachment. The agent then attaches the volume again
// before the next NodeStageVolume.
func DoubtAttachment(r Record, operation string) (now Record, changed bool) {
	n := &r.Node
	if n.Hold.Operation != operation || !n.Hold.usable() || n.Attached != Present {
		return r, false
	}

	n.Attached, n.Hold.Confirmed = Unknown, false
	return r, true
}

// Reclaims reports whether this host must write its hold anew in the given epoch of the cluster. The
// record then has a hold of an earlier epoch, and the host may have made other sides under it.
func (r Record) Reclaims(epoch int64) bool {
	h := r.Node.Hold
	used := h.State == Present || h.State == Unknown && !neverMounted(r)
	earlier := h.Token.Epoch > 0 && h.Token.Epoch < epoch
	return r.Volume.Shared && used && earlier && !h.Lost
}

// Idle reports whether the agent can forget the record of a shared volume. The definition remains
// in the cluster, so the agent reads it again for the next claim.
func (r Record) Idle() bool {
	return r.Volume.Shared && !r.Leftover && !r.Held() && len(r.Guards) == 0
}
