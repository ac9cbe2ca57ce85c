package volume_test

import (
	"fmt"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// The code in this file adds a cluster to the simulated world: its store and the other hosts. They
// matter only to the variants with a shared volume.

// holding says which host has the hold of the volume in the cluster's store.
type holding uint8

const (
	none holding = iota
	mine
	other
)

// These are the errors of a step in the cluster's store.
var (
	errAway = &volume.CallError{Step: "step", Code: "Unavailable", Retry: volume.RetryBackoff}
	errHeld = &volume.CallError{Step: "step", Code: volume.CodeHeld, Message: "another host", Retry: volume.RetryBackoff, Answered: true}
)

// stores reports whether a step is a transaction of its own in the cluster's store.
func stores(k call.Method) bool {
	return k == volume.Acquire || k == volume.Confirm || k == volume.GiveUp
}

// controls reports whether a step is a controller call that the agent announces in the cluster's
// store.
func controls(k call.Method) bool {
	return k == call.ControllerPublish || k == call.ControllerUnpublish
}

// acquire gives this host the hold. A late transaction about an earlier state of the hold then has
// no effect any more.
func (w *world) acquire(token uint8) {
	w.hold, w.token, w.confirmed, w.takenOver, w.had = mine, token, false, false, true
	w.late &^= lateStore
}

// giveUp ends the hold of this host. It changes a key that each earlier Acquire compares.
func (w *world) giveUp() {
	w.late &^= lateStore
	w.had = false
	if w.hold == mine {
		w.hold, w.confirmed = none, false
	}
}

// loseHold gives the hold of this host to another host, which has a proof that this host can no longer
// write. The volume is then no longer attached to this host.
func (w *world) loseHold() {
	w.hold, w.confirmed, w.attached = other, false, false
	w.late &^= lateStore | lateAttachments
}

// answerAfterLoss returns the outcome of a controller call during which this host has lost its hold.
// The next holder undoes its effect.
func answerAfterLoss(h how) volume.Outcome {
	return map[how]volume.Outcome{ok: {}, unsent: {Err: errAway, Unsent: true}, fail: {Err: errRefused}, failDone: {Err: errRefused}, failLate: {Err: errUncertain}}[h]
}

// store executes a transaction in the cluster's store and returns the outcome that the agent
// receives.
func (w *world) store(a volume.Action, h how, token uint8) volume.Outcome {
	if a.Kind == volume.Acquire && !w.asked {
		w.late &^= lateStore // the agent has registered since its start, and a transaction of the earlier incarnation fails
		w.asked = true
	}
	switch {
	case h != failLate:
	case a.Kind == volume.GiveUp:
		w.late |= lateGiveUp
	case a.Kind == volume.Acquire && w.hold == none: // in all other cases, the agent sends no transaction
		w.late |= lateAcquire
	}

	if h == refused {
		return w.refuse(a)
	}
	if h != ok && h != failDone {
		return volume.Outcome{Err: errAway}
	}

	switch {
	case a.Kind == volume.Acquire && w.hold == none:
		w.acquire(token)
	case a.Kind == volume.GiveUp:
		w.giveUp()
	case w.hold != mine || a.Kind == volume.Confirm && w.takenOver:
		return volume.Outcome{Err: errHeld}
	case a.Kind == volume.Confirm:
		w.confirmed = true
	}
	if h != ok {
		return volume.Outcome{Err: errAway}
	}

	return volume.Outcome{Token: volume.Token{Revision: int64(w.token)}}
}

// refuse returns the outcome of a transaction that another host prevents. For an Acquire, that host
// has a call in flight. For a Confirm, that host has taken over the ControllerPublishVolume, and has
// detached the volume. An attachment that the store shows as made is not taken over.
func (w *world) refuse(a volume.Action) volume.Outcome {
	switch {
	case a.Kind == volume.Confirm && w.confirmed, a.Kind == volume.Acquire && w.hold == mine:
		return volume.Outcome{Err: errAway}
	case a.Kind == volume.Confirm:
		w.attached, w.takenOver = false, true
	}
	return volume.Outcome{Err: errHeld}
}

// brokenHold returns the rule about holds that a step would violate, or "".
func (w *world) brokenHold(v variant, r volume.Record, a volume.Action) string {
	lost := r.Node.Hold.Lost
	switch {
	case !v.shared && stores(a.Kind):
		return "a volume of one host needs no hold"
	case !v.shared:
		return ""
	case lost && (controls(a.Kind) || a.Kind == volume.Acquire || a.Kind == volume.Confirm):
		return "done for a hold that is lost"
	}

	switch a.Kind {
	case call.NodeStage, call.NodePublish, call.ControllerPublish, volume.Confirm:
		if w.hold != mine && !w.relies(r) {
			return "done without the hold"
		}
	case volume.Trust:
		return w.brokenTrust(v, r)
	}

	switch {
	case (a.Kind == call.NodeStage || a.Kind == call.NodePublish) && v.attach && !w.confirmed:
		return "mounted before the store shows the attachment"
	case stores(a.Kind) && r.Node.Hold.Operation == "":
		return "done without the name of the acquisition"
	case a.Kind == volume.Confirm && !w.attached && !w.takenOver:
		return "confirmed without an attachment"
	case a.Kind == volume.GiveUp && (w.mounted() || w.staged || w.unseen):
		return "given up while something is mounted"
	case a.Kind == volume.GiveUp && w.late&lateMounts != 0:
		return "given up while a late mount may still come"
	case a.Kind == volume.GiveUp && !lost && (w.attached || w.late&lateAttach != 0):
		return "given up while the volume is, or may still be, attached"
	}

	return ""
}

// brokenTrust returns the rule that the use of a hold without an answer of the store would violate, or "".
func (w *world) brokenTrust(v variant, r volume.Record) string {
	switch {
	case !v.trust:
		return "done for a volume that must wait for the store"
	case v.attach:
		return "done for a volume with an attachment, which needs the store anyway"
	case w.asked:
		return "done although the agent has asked the store since its start"
	case !w.had:
		return "done for a hold that this host has given up or never had"
	case r.Node.Boot == "" || r.Node.Boot == w.bootID():
		return "done for a volume that this host did not use before the boot"
	}
	return ""
}

// relies reports whether the record shows a hold that this host uses without an answer of the store,
// and which the host has not given up.
func (w *world) relies(r volume.Record) bool {
	return r.Volume.Boot == volume.BootTrustLocal && r.Node.Hold.Unverified && w.had
}

// forgottenHold describes a hold that this host has or may still get, although the record does not
// show it. It also describes a claim that is mounted without a hold.
func forgottenHold(r volume.Record, w world) string {
	h := r.Node.Hold
	switch {
	case w.hold == mine && h.State == volume.Absent:
		return "the record forgot the hold"
	case w.late&lateAcquire != 0 && h.State == volume.Absent:
		return "the record forgot that the hold may still come"
	}

	for i, alloc := range allocs {
		mounted := w.target[i].id != 0 && r.Claims[alloc].Published == volume.Present
		if r.Volume.Shared && mounted && r.Claims[alloc].Wanted && w.hold != mine && !w.relies(r) {
			return fmt.Sprintf("the claim of %s is mounted, and this host has no hold", alloc)
		}
	}

	return ""
}

// unsettledHold describes a hold that is missing or superfluous in a settled state, or returns "".
func unsettledHold(v variant, r volume.Record, w world, wanted bool) string {
	switch {
	case !v.shared:
		return ""
	case wanted && w.hold != mine && !w.relies(r):
		return "settled without the hold"
	case wanted && v.attach && !w.confirmed:
		return "settled with an attachment that the store does not show"
	case wanted && w.late&lateGiveUp != 0:
		return "settled while the hold may still end"
	case !wanted && (w.hold == mine || w.late&lateAcquire != 0):
		return "settled with a hold that nobody needs"
	case !wanted && !r.Leftover && !r.Idle():
		return "settled without a claim, and the record is not idle"
	}
	return ""
}

// hosts adds the states that follow an event on another host.
func (x *explorer) hosts(s state, at int32) {
	if !x.v.shared {
		return
	}

	next := s
	if s.mem.Node.Hold.Unverified {
		x.add(s.compared(), at, label{what: "the agent compares its holds with the cluster"})
	}
	switch {
	case s.w.hold == other:
		next.w.hold = none
		x.add(next, at, label{what: "the other host gives up its hold"})
	case s.w.hold == none && s.left.others > 0:
		next.w.hold = other
		next.left.others--
		x.add(next, at, label{what: "another host acquires the hold"})
	}
}

// compared returns the state after the cluster has answered again and the agent has compared its holds.
func (s state) compared() state {
	h := s.mem.Node.Hold
	if h.State == volume.Present && s.w.hold != mine {
		s.mem, _ = volume.LoseHold(s.mem)
		s.w.had = false
	} else {
		s.mem, _ = volume.SeenHold(s.mem, s.w.hold == mine)
	}
	s.disk = s.mem
	return s
}

// alone checks the agent while the cluster is not reachable. The agent must end each detach, and
// must mount each claim under a hold that the record shows. The hold must remain.
func (x *explorer) alone(s state) string {
	if !x.v.shared || s.down || s.debt.mem.Leftover {
		return ""
	}

	s.parked, s.w.unseen, s.w.late = 0, false, 0
	s.left.intents = 1
	k := s.future()
	if x.apart[k] {
		return ""
	}

	end, bad := x.endsAlone(s)
	if bad != "" {
		return bad
	}
	if next, changed := end.wish(x.v, intent{"claim", 1}); changed && usable(x.v, s) && len(end.mem.Claims) == 0 {
		if _, bad := x.endsAlone(next); bad != "" {
			return "after a new claim, " + bad
		}
		if !usable(x.v, next) {
			return "without the cluster, a volume that nobody claims does not keep its hold"
		}
	}

	x.apart[k] = true
	return ""
}

// usable reports whether the record shows a hold under which the volume can be mounted without the
// cluster.
//
// With controllers on other hosts, only a volume that was in use before the boot is certain to need
// none of them.
func usable(v variant, s state) bool {
	n := s.mem.Node
	attached := !v.attach || n.Attached == volume.Present && n.Hold.Confirmed
	trusts := v.trust && !v.attach && n.Hold.Unverified && n.Boot != ""
	held := n.Hold.State == volume.Present && !v.remote || trusts && n.Hold.State != volume.Failed
	return held && !n.Hold.Lost && attached
}

// endsAlone runs further steps without faults and without the cluster, until the agent waits.
func (x *explorer) endsAlone(s state) (end state, bad string) {
	before := s
	var steps []string
	for range enough {
		a := volume.Next(s.mem, s.observe(x.v, bothUp, allOver|alone, -1))
		steps = append(steps, string(a.Kind)+" "+a.Alloc)
		switch {
		case a.Kind == volume.Wait && a.Cause == volume.CauseOwner && s.behind:
			s = s.reap(true)
			continue
		case a.Kind == volume.Wait && s.parked != 0:
			s.parked, s.w.unseen = 0, false
			continue
		case a.Kind == volume.Wait || a.Kind == volume.Settled:
			if bad := restless(x.v, before, s); bad != "" {
				return s, fmt.Sprintf("without the cluster, %s: %s %s, after %q", bad, a.Cause, a.Reason, steps)
			}
			return s, ""
		}
		if bad := s.w.broken(x.v, s.mem, a); bad != "" {
			return s, fmt.Sprintf("without the cluster, %s: %s, after %q", a.Kind, bad, steps)
		}
		s = s.save(a, s.w.do(x.v, a, ok, s.fresh()))
	}
	return s, fmt.Sprintf("without the cluster, it does not come to rest: %q", steps)
}

// restless describes a step that the agent has left out although the step does not need the cluster.
// It returns "" if there is none.
func restless(v variant, before, s state) string {
	lost := s.mem.Node.Hold.Lost
	if before.w.hold == mine && s.w.hold != mine {
		return "the hold is gone"
	}

	for _, c := range s.mem.Ordered() {
		switch {
		case !c.Wanted:
			return fmt.Sprintf("the claim of %s does not end", c.Alloc)
		case usable(v, before) && !lost && c.State != volume.Mounted:
			return fmt.Sprintf("the claim of %s is not mounted", c.Alloc)
		}
	}

	if len(s.mem.Claims) == 0 && (s.w.mounted() || s.w.staged) {
		return "something is mounted that nobody wants"
	}
	return ""
}
