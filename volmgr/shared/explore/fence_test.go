package explore_test

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// The code in this file fences hosts that are gone, as package agent/hold/fence does.

// These are the stages of a fencing.
const (
	begin    jobKind = "begin of the fencing"
	announce jobKind = "announcement of the detach"
	drop     jobKind = "drop after the detach"
	leave    jobKind = "end of the detach without a drop"
	returned jobKind = "proof by a return"
	hook     jobKind = "request to the hook"
	off      jobKind = "switch off"
	prove    jobKind = "proof by the hook"
	proven   jobKind = "drop after a proof"
)

// lost reads the keys that decide about the volume of the other host.
func (s *state) lost(x int) shared.Lost {
	return shared.Lost{Fence: s.fenceOf(x), Situation: s.situation(1 - x)}
}

// fences adds the states after the next step of the fencing of the other host.
func (s state) fences(v variant, x int, add emit) {
	h, y := &s.hosts[x], 1-x
	switch h.fence.kind {
	case noJob:
		if h.up && h.registered {
			s.beginFence(v, x, add)
		}
	case detach:
		s.checkCall(x, y, h.fence.who)
		s.send(x, y, false, add, func(s *state, err *volume.CallError) {
			j := &s.hosts[x].fence
			j.kind = drop
			if err != nil {
				j.kind, j.uncertain = leave, err != errRefused
			}
		})
	case off:
		s.hosts[x].fence.kind = prove
		failed := s
		if s.left.hooks > 0 {
			s.left.hooks--
			s.crash(y, true)
			add(s, "the hook switches the other host off", x)
		}
		if s.left.faults > 0 || s.left.hooks == 0 {
			failed.left.faults = max(1, failed.left.faults) - 1
			failed.hosts[x].fence.kind = end
			add(failed, "the hook fails", x)
		}
	default:
		s.turn(x, fencing, h.fence.who, string(h.fence.kind), s.fenceTurn(v, x), add)
	}
}

// beginFence begins to fence the other host, if this host waits for its volume, or if its fencing was
// abandoned.
func (s state) beginFence(v variant, x int, add emit) {
	h, y := &s.hosts[x], 1-x
	n := s.node(y).Value
	if s.live(y).Exists() {
		return
	}
	hold := get[shared.Hold](s.store, shared.HoldKey(names[y], id))
	wanted := h.wants() && h.rec.Node.Hold.State != volume.Present && hold.Exists()
	m := get[shared.Meta](s.store, shared.MetaKey).Value
	if n.ProvenOff(m) {
		if wanted {
			h.fence = job{kind: proven, who: h.who}
			s.turn(x, fencing, h.who, string(proven), s.fenceTurn(v, x), add)
		}
		return
	}

	wanted = wanted && (v.fence == plugin.FenceHook || v.fence == plugin.FenceDetach && hold.Value.Attachment != "")
	if !wanted && n.State != shared.NodeFencing {
		return
	}
	h.fence = job{kind: begin, who: h.who, uncertain: !wanted}
	s.turn(x, fencing, h.who, string(begin), s.fenceTurn(v, x), add)
}

// operation returns a name for a detach that no other call has.
func (s *state) operation(x int) string {
	used := func(op string) bool {
		if get[shared.Call](s.store, shared.CallKey(id)).Value.Operation == op {
			return true
		}
		if s.hosts[0].clean.one.Operation == op || s.hosts[1].clean.one.Operation == op {
			return true
		}
		return slices.ContainsFunc(s.net, func(one sent) bool { return mentions(one.txn, op) })
	}
	for n := 0; ; n++ {
		if op := fmt.Sprintf("fence-%s%d", names[x], n); !used(op) {
			return op
		}
	}
}

// fenceTurn is the transaction of a stage of a fencing.
func (s state) fenceTurn(v variant, x int) turn {
	j := s.hosts[x].fence
	then := func(next, failed jobKind) func(*state, error, int64, bool) {
		return func(s *state, err error, _ int64, _ bool) {
			is := &s.hosts[x].fence
			is.kind = next
			if err != nil {
				is.kind = failed
			}
			if is.kind == noJob {
				*is = job{}
			}
		}
	}
	by := func(decide func(shared.Lost) (shared.Txn, error)) func(*state) (shared.Txn, int64, error) {
		return func(s *state) (shared.Txn, int64, error) { return noToken(decide(s.lost(x))) }
	}

	switch j.kind {
	case begin:
		next := announce
		if v.fence == plugin.FenceHook {
			next = returned
		}
		if j.uncertain {
			next = end // no host waits for the volume
		}
		return turn{by(func(l shared.Lost) (shared.Txn, error) { return l.Fence.Begin(j.who, now) }), then(next, noJob)}
	case announce:
		return turn{func(s *state) (shared.Txn, int64, error) {
			op := s.operation(x)
			l := s.lost(x)
			s.hosts[x].fence.operation, s.hosts[x].fence.one.NodeID = op, l.Situation.Hold.Value.NodeID
			return noToken(l.BeginDetach(j.who, op, deadline, now))
		}, then(detach, end)}
	case drop:
		return turn{by(func(l shared.Lost) (shared.Txn, error) {
			if !l.Situation.Hold.Exists() && l.Fence.Proof.Value.Has(id) {
				return shared.Txn{}, nil
			}
			return l.DropDetached(j.who, j.operation, now)
		}), func(s *state, err error, r int64, executed bool) {
			s.hosts[x].fence.uncertain = err != nil
			then(end, leave)(s, err, r, executed)
		}}
	case leave:
		return turn{by(func(l shared.Lost) (shared.Txn, error) { return l.LeaveDetach(j.who, j.operation, j.uncertain) }), then(end, end)}
	case end:
		return turn{by(func(l shared.Lost) (shared.Txn, error) { return l.Fence.End(j.who, now) }), then(noJob, noJob)}
	default:
		return s.hookTurn(x, by, then)
	}
}

// hookTurn is the transaction of a stage of a fencing by a hook.
func (s state) hookTurn(x int, by func(func(shared.Lost) (shared.Txn, error)) func(*state) (shared.Txn, int64, error),
	then func(next, failed jobKind) func(*state, error, int64, bool),
) turn {
	j := s.hosts[x].fence
	switch j.kind {
	case returned:
		return turn{by(func(l shared.Lost) (shared.Txn, error) { return l.Fence.ProveReturned(j.who, now) }), func(s *state, err error, r int64, executed bool) {
			next := hook
			if executed {
				next = proven
			}
			then(next, end)(s, err, r, executed)
		}}
	case hook:
		return turn{by(func(l shared.Lost) (shared.Txn, error) {
			if is := l.Fence.Node.Value.Fencing; is != nil && is.Hook && len(l.Fence.Proof.Value.Hooks) > 0 {
				return shared.Txn{}, nil
			}
			return l.Fence.AskHook(j.who, "off", now)
		}), then(off, end)}
	case prove:
		return turn{by(func(l shared.Lost) (shared.Txn, error) {
			if l.Fence.Node.Value.ProvenOff(l.Fence.Meta.Value) {
				return shared.Txn{}, nil
			}
			return l.Fence.ProveHook(j.who, "off", now)
		}), then(proven, end)}
	default:
		return turn{by(func(l shared.Lost) (shared.Txn, error) { return l.DropProven(j.who, deadline, now) }), then(end, end)}
	}
}

// declares adds the states after a person has stated that the other host is switched off. The person is
// honest.
func (s state) declares(x int, add emit) {
	h := &s.hosts[x]
	t := turn{
		decide: func(s *state) (shared.Txn, int64, error) {
			return noToken(s.fenceOf(x).Declare(h.who, "person", "off", now))
		},
		done: func(*state, error, int64, bool) {},
	}
	if h.sent[asking] != nil {
		s.turn(x, asking, h.who, "statement of a person", t, add)
		return
	}
	if !h.up || !h.registered || !s.hosts[1-x].off || s.live(1-x).Exists() || s.left.persons == 0 {
		return
	}
	s.turn(x, asking, h.who, "statement of a person", t, add)
}

// mentions reports whether a transaction writes a value that contains a text.
func mentions(t shared.Txn, text string) bool {
	return slices.ContainsFunc(t.Then, func(op shared.Op) bool { return bytes.Contains(op.Value, []byte(text)) })
}
