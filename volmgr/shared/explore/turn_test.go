package explore_test

import (
	"errors"
	"fmt"
	"strings"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// turn is one transaction of an agent. The agent decides again on the present keys if a condition was
// false.
type turn struct {
	// decide reads and decides. The result known is the revision of an earlier hold.
	decide func(s *state) (t shared.Txn, known int64, err error)
	// done continues after the answer. The parameter executed is set if the transaction was executed now.
	done func(s *state, err error, revision int64, executed bool)
}

// emit adds a state that can follow.
type emit func(s state, what string, x int)

// turn adds the states after a transaction of an actor. With a race, the store executes it later.
func (s state) turn(x int, a actor, who shared.Asker, what string, t turn, add emit) {
	if one := s.hosts[x].sent[a]; one != nil {
		s.deliver(x, a, what, t, add)
		return
	}

	txn, known, err := t.decide(&s)
	if err != nil || len(txn.Then) == 0 {
		t.done(&s, err, known, false)
		add(s, what+" (nothing to do, or refused)", x)
		return
	}
	txn.If = s.store.tab.conditionsOf(what, txn.If)
	if s.left.races > 0 {
		late := s
		late.left.races--
		late.hosts[x].sent[a] = &sent{txn: txn, by: who}
		add(late, what+" is sent", x)
	}
	if !s.commit(txn, who) {
		s.bad = what + ": a transaction on the present keys fails"
	}
	t.done(&s, nil, s.store.rev, true)
	add(s, what, x)
}

// deliver adds the state after the arrival of a transaction in the store, or after its answer.
func (s state) deliver(x int, a actor, what string, t turn, add emit) {
	one := *s.hosts[x].sent[a]
	s.hosts[x].sent[a] = nil
	switch {
	case one.done > 0:
		t.done(&s, nil, one.done, true)
		add(s, what+" is answered", x)
	case s.commit(one.txn, one.by):
		one.done = s.store.rev
		s.hosts[x].sent[a] = &one
		add(s, what+" arrives", x)
	default:
		add(s, what+" arrives, and has failed", x)
	}
}

// commit executes a transaction, and checks the rules about changes of the store.
func (s *state) commit(t shared.Txn, who shared.Asker) (done bool) {
	before := s.store
	now, done := before.do(t)
	if !done {
		return false
	}
	s.store = now

	if who.Node != "" {
		n := get[shared.Node](before, shared.NodeKey(who.Node)).Value
		if n.Incarnation != who.Incarnation || n.State == shared.NodeFencing || n.State == shared.NodeFenced {
			s.bad = fmt.Sprintf("I3: the store accepts a write of host %s, incarnation %d, which is %s with incarnation %d", who.Node, who.Incarnation, n.State, n.Incarnation)
		}
	}
	holds := 0
	for x, name := range names {
		key := shared.HoldKey(name, id)
		was, is := get[shared.Hold](before, key), get[shared.Hold](now, key)
		if is.Exists() {
			holds++
		}
		switch {
		case is.Exists() && is.Create != was.Create:
			if is.Create <= s.token {
				s.bad = "I7: the token of a new hold is not greater"
			}
			s.token = is.Create
		case was.Exists() && !is.Exists() && who.Node != name:
			if s.writes(x) {
				s.bad = "I3: the hold of a host is dropped that can still write"
			}
			if !s.proven(x, was.Create) {
				s.bad = "I3: a hold is dropped, and no proof is recorded"
			}
		}
	}
	if holds > 1 && len(get[shared.Use](now, shared.UseKey(id)).Value.Rivals) == 0 {
		s.bad = "I1: two hosts have a hold"
	}
	for _, op := range t.Then {
		kind, _, _ := strings.Cut(op.Key, "/")
		if leased := kind == "live" || kind == "moves"; op.Kind == shared.OpPut && op.Lease != 0 && !leased {
			s.bad = "I2: the key " + op.Key + " ends with a lease"
		}
	}
	return true
}

// writes reports whether a host can write to the storage.
func (s *state) writes(x int) bool {
	return s.hosts[x].mounted() && !s.hosts[x].dead && (s.attached[x] || !s.attaches)
}

// steps adds the states after the next step of the volume on a host.
func (s state) steps(v variant, x int, add emit) {
	h := &s.hosts[x]
	if !h.up {
		return
	}
	switch h.step.kind {
	case txn:
		s.turn(x, stepping, h.step.who, string(h.step.action.Kind), s.stepTurn(v, x), add)
	case send:
		s.sendStep(x, add)
	case ended:
		s.turn(x, stepping, h.step.who, "end of a call", s.endTurn(x), add)
	case noStep:
		a, ok := s.next(v, x)
		if !ok || s.bad != "" {
			add(s, "acts on its host", x)
			return
		}
		h.step = step{kind: txn, action: a, who: h.who, mounted: h.rec.Mounted()}
		first := h.rec.Node.Attached == volume.Absent && a.Kind == call.ControllerPublish
		if first && h.admitted > 0 && h.admitted == h.who.Incarnation {
			h.step.kind, h.admitted = send, 0
			add(s, "begins a call under its admission", x)
			return
		}
		h.admitted = 0
		s.turn(x, stepping, h.who, string(a.Kind), s.stepTurn(v, x), add)
	}
}

// stepTurn is the transaction of a step.
func (s state) stepTurn(v variant, x int) turn {
	st := s.hosts[x].step
	op := s.hosts[x].rec.Node.Hold.Operation
	finish := func(s *state, out volume.Outcome) {
		h := &s.hosts[x]
		h.rec, _ = volume.Apply(h.rec, st.action, out)
		h.step = step{}
	}
	switch st.action.Kind {
	case volume.Acquire:
		return s.acquireTurn(v, x, finish)
	case volume.Confirm:
		return turn{
			decide: func(s *state) (shared.Txn, int64, error) { return noToken(s.situation(x).Confirm(st.who, op)) },
			done:   func(s *state, err error, _ int64, _ bool) { finish(s, s.checkedHold(x, err)) },
		}
	case volume.GiveUp:
		return turn{
			decide: func(s *state) (shared.Txn, int64, error) { return noToken(s.situation(x).GiveUp(st.who, op, now)) },
			done: func(s *state, err error, _ int64, _ bool) {
				out := volume.Outcome{}
				if err != nil {
					out = outcome(err)
				}
				finish(s, out)
			},
		}
	}
	return turn{
		decide: func(s *state) (shared.Txn, int64, error) {
			return noToken(s.situation(x).BeginAttachmentCall(shared.AnnouncedCall{
				Asker: st.who, Operation: op, Call: st.action.Kind, Target: names[x], NodeID: st.action.NodeID, Deadline: deadline, Mounted: st.mounted, Now: now,
			}))
		},
		done: func(s *state, err error, _ int64, _ bool) {
			if err == nil {
				s.hosts[x].step.kind = send
				return
			}
			s.checkedHold(x, err)
			out := outcome(err)
			out.Unsent = true
			finish(s, out)
		},
	}
}

// acquireTurn is the transaction that gets a hold.
func (s state) acquireTurn(v variant, x int, finish func(*state, volume.Outcome)) turn {
	who := s.hosts[x].step.who
	return turn{
		decide: func(s *state) (shared.Txn, int64, error) {
			sit, ask := s.situation(x), s.ask(v, x, who)
			if token, ok := sit.Granted(ask); ok {
				return shared.Txn{}, token.Revision, sit.CheckVerified(ask)
			}
			return noToken(sit.Admit(ask))
		},
		done: func(s *state, err error, revision int64, executed bool) {
			h := &s.hosts[x]
			if err == nil {
				if h.admitted = 0; executed && v.attach {
					h.admitted = who.Incarnation
				}
				token := volume.Token{Epoch: s.meta().Epoch, Revision: revision}
				if executed {
					token.Epoch = who.Era.Epoch
				}
				finish(s, volume.Outcome{Token: token, Since: now})
				return
			}
			sit := s.situation(x)
			if _, granted := sit.Granted(s.ask(v, x, who)); sit.Hold.Exists() && !granted {
				h.rec, _ = volume.AdoptHold(h.rec, earlierHold(sit.Hold.Value))
			}
			finish(s, outcome(err))
		},
	}
}

// noToken adds the token of no hold to a decision.
func noToken(t shared.Txn, err error) (shared.Txn, int64, error) { return t, 0, err }

// checkedHold returns the outcome of a decision that compares the hold.
func (s *state) checkedHold(x int, err error) volume.Outcome {
	if err == nil {
		return volume.Outcome{}
	}
	h := &s.hosts[x]
	if errors.Is(err, shared.ErrHoldLost) && s.meta().Suspended == "" {
		if is := h.rec.Node.Hold; !is.Lost && is.State != volume.Unknown && !s.proven(x, is.Token.Revision) {
			s.bad = fmt.Sprintf("host %s has lost its hold, and the store has no proof", names[x])
		}
		s.lose(x)
	}
	return outcome(err)
}

// endTurn is the transaction that ends a call which the controller has refused.
func (s state) endTurn(x int) turn {
	st, op := s.hosts[x].step, s.hosts[x].rec.Node.Hold.Operation
	return turn{
		decide: func(s *state) (shared.Txn, int64, error) {
			return noToken(s.situation(x).EndAttachmentCall(st.who, op))
		},
		done: func(s *state, _ error, _ int64, _ bool) {
			h := &s.hosts[x]
			h.rec, _ = volume.Apply(h.rec, st.action, volume.Outcome{Err: errRefused})
			h.step = step{}
		},
	}
}

// sendStep adds the states after the agent has sent the announced call of its step.
func (s state) sendStep(x int, add emit) {
	st := s.hosts[x].step
	publish := st.action.Kind == call.ControllerPublish
	s.checkCall(x, x, st.who)
	s.send(x, x, publish, add, func(s *state, err *volume.CallError) {
		h := &s.hosts[x]
		if err == errRefused {
			h.step.kind = ended
			return
		}
		h.rec, _ = volume.Apply(h.rec, st.action, volume.Outcome{Err: err})
		h.step = step{}
	})
}

// send adds the states after a controller call of host x for host y.
func (s state) send(x, y int, publish bool, add emit, done func(*state, *volume.CallError)) {
	what := "ControllerUnpublish for " + names[y]
	if publish {
		what = "ControllerPublish for " + names[y]
	}
	effected, later := s, s
	effected.attached[y] = publish
	later.late = append(later.late[:len(later.late):len(later.late)], effect{uint8(x), uint8(y), publish})

	ok := effected
	done(&ok, nil)
	add(ok, what, x)
	if s.left.faults > 0 {
		effected, later, refused := effected, later, s
		effected.left.faults--
		later.left.faults--
		refused.left.faults--
		done(&effected, errUncertain)
		done(&later, errUncertain)
		done(&refused, errRefused)
		add(effected, what+" (its answer is lost)", x)
		add(later, what+" (takes effect later)", x)
		add(refused, what+" (is refused)", x)
	}
	if s.left.crashes > 0 {
		effected.left.crashes--
		later.left.crashes--
		effected.crash(x, false)
		later.crash(x, false)
		add(effected, what+", then the agent crashes", x)
		add(later, what+" (takes effect later), then the agent crashes", x)
	}
}

// checkCall checks the rule that one host at a time makes a controller call. A paused agent may send its
// call after another host has taken it over, because its lease had ended.
func (s *state) checkCall(x, y int, who shared.Asker) {
	c := get[shared.Call](s.store, shared.CallKey(id))
	if c.Exists() && c.Value.Executor == names[x] && c.Value.Target == names[y] && c.Value.Incarnation == who.Incarnation {
		return
	}
	s.stray[y] = true
	if l := s.live(x); l.Exists() && l.Value.Incarnation == who.Incarnation {
		is := "none"
		if c.Exists() {
			is = strings.Join([]string{c.Value.Executor, string(c.Value.Call), "for", c.Value.Target}, " ")
		}
		s.bad = fmt.Sprintf("I11: host %s, which is alive, makes a controller call for %s, and the store shows: %s", names[x], names[y], is)
	}
}
