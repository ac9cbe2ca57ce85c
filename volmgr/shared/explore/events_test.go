package explore_test

import (
	"slices"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// source adds the states that can follow by the events of one kind.
type source struct {
	name string
	add  func(s state, v variant, add emit)
}

// fair are the events that happen in every fair continuation, in an order that leads to its end.
var fair = slices.Concat([]source{
	{"network", state.arrivals},
	{"storage", state.lands},
	{"leases", state.expiries},
	{"mounts", state.dies},
}, perHost("start", state.starts), perHost("registration", state.registers), perHost("comparison", state.compares),
	perHost("cleaning", func(s state, v variant, x int, add emit) { s.cleans(v, x, add) }),
	perHost("volume", func(s state, v variant, x int, add emit) { s.steps(v, x, add) }),
	perHost("fencing", func(s state, v variant, x int, add emit) { s.fences(v, x, add) }),
	perHost("person", func(s state, _ variant, x int, add emit) { s.declares(x, add) }),
	perHost("processes", state.frees), perHost("quarantine", state.quarantines), perHost("move", state.moves),
	[]source{{"resume", state.resumes}}, perHost("conflict", state.resolves),
)

// perHost returns one source for each host.
func perHost(name string, add func(s state, v variant, x int, add emit)) []source {
	one := func(x int) source {
		return source{name, func(s state, v variant, do emit) { add(s, v, x, do) }}
	}
	return []source{one(0), one(1)}
}

// arrivals adds the states after the arrival of a transaction of an agent that has crashed.
func (s state) arrivals(_ variant, add emit) {
	for i, one := range s.net {
		next := s
		next.net = slices.Delete(slices.Clone(s.net), i, i+1)
		never := next
		next.commit(one.txn, one.by)
		add(next, "a transaction of an earlier agent arrives", 0)
		add(never, "a transaction of an earlier agent is lost", 0)
	}
}

// lands adds the states after a late effect of a controller call.
func (s state) lands(_ variant, add emit) {
	for i := range s.late {
		next, never := s, s
		next.land(i, true)
		never.land(i, false)
		add(next, "a late effect happens", int(s.late[i].target))
		add(never, "a late effect does not happen", int(s.late[i].target))
	}
}

// expiries adds the states after the end of leases that no agent renews.
func (s state) expiries(_ variant, add emit) {
	for x, name := range names {
		next := s
		renews := s.hosts[x].up && s.alive(x)
		if l := s.live(x); l.Exists() && !renews && s.hosts[x].sent[registering] == nil {
			next.store = s.store.delete(shared.LiveKey(name))
			add(next, "the lease ends", x)
		}
		if s.store.has(shared.ReturnedKey(name)) && (!s.hosts[x].up || s.hosts[x].registered) {
			next = s
			next.store = s.store.delete(shared.ReturnedKey(name))
			add(next, "the sign of a return ends", x)
		}
	}
}

// dies adds the states after a mount has got errors, because the host has no access to the storage.
func (s state) dies(_ variant, add emit) {
	for x := range s.hosts {
		next := s
		if h := &next.hosts[x]; s.attaches && h.mounted() && !h.dead && !s.attached[x] {
			h.dead = true
			add(next, "the mounts die", x)
		}
	}
}

// starts adds the states after a start of an agent, and of its host.
func (s state) starts(_ variant, x int, add emit) {
	if !s.hosts[x].up {
		s.start(x)
		add(s, "starts", x)
	}
}

// registers adds the states after a step of a registration.
func (s state) registers(v variant, x int, add emit) {
	h := &s.hosts[x]
	switch {
	case !h.up:
	case h.reg.stage != "":
		s.turn(x, registering, h.who, string(h.reg.stage), s.register(v, x), add)
	case h.reg.self.Node != "":
		s.turn(x, registering, shared.Asker{}, "registration", s.register(v, x), add)
	case h.registered && !s.alive(x):
		h.registered = false
		add(s, "notices that its registration has ended", x)
	case h.registered:
	case s.arrive(x):
		s.turn(x, registering, shared.Asker{}, "registration", s.register(v, x), add)
	default:
		add(s, "cannot register yet", x)
	}
}

// compares adds the state after a host has compared its hold with its record, because a key has changed.
func (s state) compares(v variant, x int, add emit) {
	h := &s.hosts[x]
	if !h.up || !h.registered {
		return
	}
	e := get[shared.Hold](s.store, shared.HoldKey(names[x], id))
	is := h.rec.Node.Hold
	switch {
	case is.State == volume.Present && !is.Lost && !s.shows(x):
	case is.Unverified:
	case e.Exists() && e.Value.By != "" && h.rec.Node.Attached == volume.Present:
	case e.Exists() && is.Operation != e.Value.Operation:
	default:
		return
	}
	s.compare(v, x)
	add(s, "compares its hold", x)
}

// faults are the events that a budget limits.
var faults = []source{{"claims", state.wishes}, {"failures", state.fails}, {"orders", state.orders}, {"backups", state.backups}}

// wishes adds the states after a change of intent.
func (s state) wishes(v variant, add emit) {
	for x := range s.hosts {
		next := s
		if s.left.claims > 0 && s.hosts[x].up && (x == 0 || s.hosts[0].claims > 0) && next.claim(v, x) { // the hosts are alike
			next.left.claims--
			add(next, "claims the volume", x)
		}
		next = s
		if s.left.releases > 0 && s.hosts[x].up && next.release(x) {
			next.left.releases--
			add(next, "releases the volume", x)
		}
	}
}

// fails adds the states after a failure of a host, an agent or a lease.
func (s state) fails(_ variant, add emit) {
	for x := range s.hosts {
		h := &s.hosts[x]
		next := s
		if s.left.crashes > 0 && h.up {
			next.left.crashes--
			next.crash(x, false)
			add(next, "the agent crashes", x)
		}
		next = s
		if s.left.outages > 0 && !h.off {
			next.left.outages--
			next.crash(x, true)
			add(next, "the host loses its power", x)
		}
		next = s
		if s.left.leases > 0 && h.up && s.alive(x) {
			next.left.leases--
			next.store = s.store.delete(shared.LiveKey(names[x]))
			add(next, "loses its lease, although it runs", x)
		}
	}
}
