package explore_test

import (
	"errors"
	"slices"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// The code in this file ends the calls of hosts that are gone, as package agent/hold/clean does.

// job is the work of the agent for another host: it ends a call, or fences the host.
type job struct {
	kind      jobKind
	one       shared.Call
	who       shared.Asker
	reclaimed bool
	operation string
	uncertain bool
}

// jobKind is the stage of a job.
type jobKind string

// These are the stages of the end of a call.
const (
	noJob   jobKind = ""
	take    jobKind = "take over a call"
	detach  jobKind = "detach"
	end     jobKind = "end"
	extra   jobKind = "announce a detach"
	missing jobKind = "mark a missing attachment"
	handing jobKind = "hand a call over"
)

// cleans adds the states after the next step of the cleaning on a host.
func (s state) cleans(v variant, x int, add emit) {
	h := &s.hosts[x]
	switch h.clean.kind {
	case noJob:
		if h.up && h.registered {
			s.pass(v, x, add)
		}
	case detach:
		if s.left.lends > 0 && h.clean.one.Taken {
			lent := s
			lent.left.lends--
			lent.hosts[x].clean.kind = handing
			add(lent, "cannot make a detach", x)
		}
		y := slices.Index(names[:], h.clean.one.Target)
		s.checkCall(x, y, s.taker(x))
		s.send(x, y, false, add, func(s *state, err *volume.CallError) {
			s.hosts[x].clean.kind = end
			if err != nil {
				s.hosts[x].clean = job{}
			}
		})
	default:
		s.turn(x, cleaning, h.clean.who, string(h.clean.kind), s.cleanTurn(x), add)
	}
}

// taker returns the asker that has taken the present call over, which may be an earlier one of a host.
func (s *state) taker(x int) shared.Asker {
	who := s.hosts[x].clean.who
	if c := get[shared.Call](s.store, shared.CallKey(id)); c.Exists() && c.Value.TakenOver(names[x]) {
		who.Incarnation = c.Value.Incarnation
	}
	return who
}

// pass begins to end a call, if that is due.
func (s state) pass(v variant, x int, add emit) {
	h := &s.hosts[x]
	e := get[shared.Call](s.store, shared.CallKey(id))
	if s.meta().Suspended != "" {
		return // the keys may be older than the storage
	}
	if !e.Exists() {
		s.compareAttachments(v, x, add)
		return
	}

	one := e.Value
	ex := slices.Index(names[:], one.Executor)
	executor := s.live(ex)
	outlived := executor.Exists() && one.Outlived(executor.Value)
	serving, own := executor.Exists() && !outlived, ex == x && !outlived
	fences := one.Fence && ex == x
	switch {
	case one.TakenOver(names[x]):
		if s.quiet(x) {
			h.clean = job{kind: detach, one: one, who: h.who}
			add(s, "continues to end a call", x)
		}
		return
	case fences && h.fence.kind != noJob:
		return
	case fences:
		serving, own = false, false
	}
	if serving || own || !s.quiet(ex) {
		return // the call may still have an effect for one deadline
	}

	h.clean = job{kind: take, one: one, who: h.who}
	if s.left.races > 0 {
		slow := s
		slow.left.races--
		add(slow, "is about to take over a call", x)
	}
	s.turn(x, cleaning, h.who, string(take), s.cleanTurn(x), add)
}

// cleanTurn is the transaction of a cleaning.
func (s state) cleanTurn(x int) turn {
	j := s.hosts[x].clean
	decide := func(s *state) (shared.Txn, int64, error) {
		o := s.orphan(x, j.one)
		switch j.kind {
		case take:
			t, err := o.Reclaim(j.who)
			s.hosts[x].clean.reclaimed = err == nil
			if errors.Is(err, shared.ErrNotOrphan) {
				t, err = o.TakeOverCall(j.who, now)
			}
			return t, 0, err
		case end:
			return noToken(o.EndTakenOver(j.who))
		case handing:
			return noToken(o.HandOver(j.who))
		case extra:
			return noToken(o.BeginUnpublish(j.who, j.one.NodeID, deadline, now))
		default:
			return noToken(o.MarkMissing(j.who, shared.PublishedNode{Node: j.one.Target, NodeID: j.one.NodeID, Mod: o.Hold.Mod}))
		}
	}
	return turn{decide: decide, done: func(s *state, err error, _ int64, _ bool) {
		is := &s.hosts[x].clean
		if err != nil || is.reclaimed || j.kind == end || j.kind == missing || j.kind == handing {
			*is = job{}
			return
		}
		is.kind, is.one.Executor, is.one.Call = detach, names[x], call.ControllerUnpublish
	}}
}

// compareAttachments compares the attachments that the driver lists with the holds.
func (s state) compareAttachments(v variant, x int, add emit) {
	if !v.lists {
		return
	}
	p := shared.Published{Nodes: map[string]string{}}
	for y, name := range names {
		p.Nodes[nodeIDs[y]] = name
		if s.attached[y] {
			p.Listed = append(p.Listed, nodeIDs[y])
		}
		if e := get[shared.Hold](s.store, shared.HoldKey(name, id)); e.Exists() {
			p.Holds = append(p.Holds, shared.Holder{Node: name, Hold: e.Value, Mod: e.Mod})
		}
	}

	begin := func(s state, kind jobKind, n shared.PublishedNode) {
		h := &s.hosts[x]
		h.clean = job{kind: kind, who: h.who, one: shared.Call{Executor: names[x], Target: n.Node, NodeID: n.NodeID, Taken: true}}
		s.turn(x, cleaning, h.who, string(kind), s.cleanTurn(x), add)
	}
	more, less := p.Differences()
	for _, n := range more {
		begin(s, extra, n)
	}
	for _, n := range less {
		begin(s, missing, n)
	}
}
