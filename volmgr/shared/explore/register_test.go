package explore_test

import (
	"errors"
	"fmt"
	"slices"

	"github.com/volagent/volagent/volmgr/shared"
)

// registration is a registration that an agent is making.
type registration struct{ self shared.Self }

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
		self.Undone, self.Quarantined = a.Node.Value.State == shared.NodeFenced && !lost, nil
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
	h.reg = registration{self}
	return true
}

// register is the transaction of a registration.
func (s *state) register(v variant, x int) turn {
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
			h.reg = registration{}
			if err != nil {
				return
			}
			if incarnation == 0 {
				incarnation = s.node(x).Value.Incarnation
			}
			m := s.arrival(x).Meta.Value
			h.member.ClusterID, h.member.Era, h.member.Incarnation, h.member.DataDir = m.ClusterID, m.Era(), incarnation, "dir"
			h.who = shared.Asker{Node: names[x], Incarnation: incarnation, Era: m.Era()}
			h.registered, h.admitted = true, false
			s.compare(v, x)
		},
	}
}
