package explore_test

import (
	"errors"
	"fmt"
	"slices"

	"github.com/volagent/volagent/volmgr/shared"
)

// registration is a registration that an agent is making.
type registration struct {
	self  shared.Self
	stage regStage
}

// regStage is the stage of a registration. The empty stage is the registration itself. The others follow in a
// new epoch of the cluster.
type regStage string

const (
	reclaiming regStage = "write of the hold in the new epoch"
	settling   regStage = "end of the registration in the new epoch"
)

// show shows that a fenced host is back, and forgets the volumes that other hosts have taken over.
func (s *state) show(x int) {
	h := &s.hosts[x]
	is := h.rec.Node.Hold
	may := is.State == "present" || is.State == "unknown" && is.Unverified
	if h.has() && may && !is.Lost && !s.shows(x) && s.proven(x, is.Token.Revision) {
		s.lose(x)
	}

	back := shared.Returned{Boot: s.bootID(x)}
	if h.has() && h.rec.Mounted() {
		back.Mounted = []string{id}
	}
	shown := get[shared.Returned](s.store, shared.ReturnedKey(names[x]))
	if shown.Exists() && shown.Value.Boot == back.Boot && slices.Equal(shown.Value.Mounted, back.Mounted) {
		return
	}
	s.store, _ = s.store.do(shared.Txn{Then: []shared.Op{shown.Put(back)}})
}

// arrive begins a registration, if the cluster accepts the host.
func (s *state) arrive(x int) bool {
	h := &s.hosts[x]
	a := s.arrival(x)
	self := shared.Self{Node: names[x], Boot: s.bootID(x), DataDir: "dir", Member: h.member, Lease: 1, Now: now}
	if h.has() && h.rec.Node.Hold.Lost && h.rec.Mounted() {
		self.Quarantined = []string{id}
	}
	if a.Node.Value.Fenced(a.Meta.Value) {
		s.show(x)
		a = s.arrival(x)
		lost := h.has() && h.rec.Node.Hold.Lost && h.rec.Mounted()
		self.Undone, self.Quarantined = a.Node.Value.State == shared.NodeFenced && (!lost || h.stuck), nil
		if lost && h.stuck {
			self.Quarantined = []string{id} // the host has tried to unmount it for some time
		}
	}

	self.Registration = fmt.Sprintf("reg-%s%d", names[x], h.regs)
	admitted, err := a.Register(self)
	if err != nil {
		if errors.Is(err, shared.ErrWentBack) {
			s.bad = err.Error()
		}
		return false
	}
	if admitted.Forgotten {
		s.bad = "the state of a host is older than the cluster's"
	}
	h.regs++
	h.member = h.member.Intends(self.Registration)
	self.Member = h.member
	h.reg = registration{self: self}
	return true
}

// register is the transaction of the present stage of a registration.
func (s *state) register(v variant, x int) turn {
	switch s.hosts[x].reg.stage {
	case reclaiming:
		return s.reclaimTurn(v, x)
	case settling:
		return s.settleTurn(v, x)
	}

	incarnation := uint64(0)
	return turn{
		decide: func(s *state) (shared.Txn, int64, error) {
			a, h := s.arrival(x), &s.hosts[x]
			if is, ok := a.Registered(h.reg.self); ok {
				incarnation = is
				return shared.Txn{}, 0, nil
			}
			admitted, err := a.Register(h.reg.self)
			incarnation = admitted.Incarnation
			return admitted.Txn, 0, err
		},
		done: func(s *state, err error, _ int64, _ bool) {
			h := &s.hosts[x]
			if err != nil {
				h.reg = registration{}
				return
			}
			h.reg.stage = reclaiming
			if incarnation == 0 {
				incarnation = s.node(x).Value.Incarnation
			}
			m := s.arrival(x).Meta.Value
			h.member.ClusterID, h.member.Era, h.member.Incarnation, h.member.DataDir = m.ClusterID, m.Era(), incarnation, "dir"
			h.who = shared.Asker{Node: names[x], Incarnation: incarnation, Era: m.Era()}
			if !s.arrival(x).Unsettled() {
				s.serve(v, x)
			}
		},
	}
}

// serve ends a registration. From now on, the agent makes the steps that need the cluster.
func (s *state) serve(v variant, x int) {
	h := &s.hosts[x]
	h.reg, h.registered, h.admitted = registration{}, true, 0
	s.compare(v, x)
}
