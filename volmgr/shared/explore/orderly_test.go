package explore_test

import (
	"github.com/volagent/volagent/volmgr/shared"
)

// The code in this file contains orders of persons: an agent is stopped, and the volume is moved. It also
// contains processes that keep the volume mounted on a host.

// orders adds the states after an order of a person, and after a process has begun to use the volume.
func (s state) orders(v variant, add emit) {
	for x := range s.hosts {
		h := &s.hosts[x]
		next := s
		if s.left.stops > 0 && h.up && h.idle() && s.alive(x) {
			next.left.stops--
			next.stop(x, add)
		}
		next = s
		if s.left.sticks > 0 && h.mounted() && !h.stuck {
			next.left.sticks--
			next.hosts[x].stuck = true
			add(next, "a process uses the volume", x)
		}
		if s.left.moves > 0 && h.up && h.registered && h.wants() {
			next = s
			next.left.moves--
			next.order(v, x, add)
		}
	}
}

// idle reports whether the agent is registered, and has nothing to do.
func (h *host) idle() bool {
	busy := h.step.kind != noStep || h.clean.kind != noJob || h.fence.kind != noJob
	return h.registered && !busy && h.sent == [actors]*sent{}
}

// stop adds the states after the agent has stopped in order. The store executes its last transaction now, or
// later.
func (s state) stop(x int, add emit) {
	h := &s.hosts[x]
	who := h.who
	t, err := s.arrival(x).Leave(who, now, now.Add(shared.AwayFor))
	if err != nil {
		return
	}

	s.crash(x, false)
	h.ended = true
	if s.left.races > 0 {
		late := s
		late.left.races--
		late.net = append(late.net[:len(late.net):len(late.net)], sent{txn: t, by: who})
		add(late, "stops in order, and its last transaction is on its way", x)
	}
	s.commit(t, who)
	add(s, "stops in order", x)
}

// frees adds the state after the end of the process that uses the volume.
func (s state) frees(_ variant, x int, add emit) {
	if h := &s.hosts[x]; h.stuck {
		h.stuck = false
		add(s, "the process ends", x)
	}
}

// quarantines adds the state after a host has shown that it has unmounted a lost volume.
func (s state) quarantines(_ variant, x int, add emit) {
	h := &s.hosts[x]
	still := h.has() && h.rec.Node.Hold.Lost && h.rec.Mounted()
	if !h.up || !h.registered || still || len(s.node(x).Value.Quarantined) == 0 {
		return
	}
	t, err := s.arrival(x).SetQuarantined(h.who, nil)
	if err == nil && s.commit(t, h.who) {
		add(s, "shows that no lost volume is mounted", x)
	}
}

// The mover of a volume is also the target of the move, and a claim on it waits for the volume. Its lease has the
// id 1, as all leases of the model.

// moving reads the keys about the move of the volume to a host.
func (s *state) moving(x, to int) shared.Moving {
	from := names[1-to]
	res := s.store.reads(shared.MovingReads(names[x], id, from, names[to]))
	return must(shared.ParseMoving(names[x], id, from, names[to], res))
}

// order adds the state after a person has ordered to move the volume to a host.
func (s state) order(_ variant, x int, add emit) {
	h := &s.hosts[x]
	t, err := s.moving(x, x).Begin(h.who, shared.Move{ID: "m", Since: now}, 1)
	if err == nil && len(t.Then) > 0 && s.commit(t, h.who) {
		add(s, "asks for the volume", x)
	}
}

// moves adds the states after a step of the move of the volume.
func (s state) moves(_ variant, x int, add emit) {
	h := &s.hosts[x]
	e := get[shared.Move](s.store, shared.MoveKey(id))
	if !e.Exists() {
		return
	}
	if m := e.Value; m.To == names[x] && !s.alive(x) {
		s.store = s.store.delete(shared.MoveKey(id))
		add(s, "the move ends with the lease", x)
		return
	}
	if !h.up || !h.registered {
		return
	}

	to := x
	if e.Value.To != names[x] {
		to = 1 - x
	}
	step := func(t shared.Txn, err error, what string) {
		next := s
		if err == nil && len(t.Then) > 0 && next.commit(t, h.who) {
			add(next, what, x)
		}
	}
	m := s.moving(x, to)
	if to == x {
		t, err := m.Accept(h.who, "m", true, 1)
		step(t, err, "accepts the volume")
		t, err = m.End(h.who, "m")
		step(t, err, "ends the move")
		return
	}
	if e.Value.State == shared.MoveAccepted && s.release(x) {
		add(s, "detaches its claim for the move", x)
	}
}
