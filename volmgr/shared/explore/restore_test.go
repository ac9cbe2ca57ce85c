package explore_test

import (
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/shared"
)

// The code in this file restores the store from a backup, as "volctl cluster restore" does. The storage and
// the hosts are not restored. Each host then writes its hold anew, as in agent/hold/restore.go.

// meta returns the description of the cluster.
func (s *state) meta() shared.Meta { return get[shared.Meta](s.store, shared.MetaKey).Value }

// backups adds the states after a backup of the store, and after a restore.
func (s state) backups(_ variant, add emit) {
	if s.left.restores == 0 {
		return
	}
	if s.backup == nil {
		saved := s
		saved.backup = s.durable()
		add(saved, "the store is saved", 0)
		return
	}

	s.left.restores--
	s.store.kvs, s.backup = s.backup, nil // the revision stays as great as before
	m := s.meta()
	m.Epoch, m.Suspended = m.Epoch+1, "restored"
	s.putMeta(m)
	add(s, "the store is restored", 0)
}

// durable returns the keys of the store that have no lease.
func (s *state) durable() []shared.KV {
	return slices.DeleteFunc(slices.Clone(s.store.kvs), func(kv shared.KV) bool {
		kind, _, _ := strings.Cut(kv.Key, "/")
		return kind == "live" || kind == "returned" || kind == "moves"
	})
}

// putMeta changes the description of the cluster.
func (s *state) putMeta(m shared.Meta) {
	s.store, _ = s.store.do(shared.Txn{Then: []shared.Op{get[shared.Meta](s.store, shared.MetaKey).Put(m)}})
}

// resumes adds the state after a person has resumed the cluster, as "volctl cluster resume" does.
func (s state) resumes(_ variant, add emit) {
	m := s.meta()
	nodes := map[string]shared.Node{}
	for x, name := range names {
		nodes[name] = s.node(x).Value
	}
	if m.Suspended == "" || len(shared.Missing(m, nodes)) > 0 {
		return
	}
	m.Suspended = ""
	s.putMeta(m)
	add(s, "a person resumes the cluster", 0)
}

// resolves adds the state after a person has ended the claim on a host, because two hosts use the volume.
func (s state) resolves(_ variant, x int, add emit) {
	rivals := len(get[shared.Use](s.store, shared.UseKey(id)).Value.Rivals) > 0
	if rivals && s.hosts[x].up && s.store.has(shared.HoldKey(names[x], id)) && s.release(x) {
		add(s, "a person decides for the other host", x)
	}
}

// place reads the keys of the volume for a change of its definition, or of a hold in a new epoch.
func (s *state) place(v variant, x int) shared.Place {
	return parsed(s, "place", x, "", shared.PlaceReads(names[x], v.volume()), func(res shared.Result) (shared.Place, error) {
		return shared.ParsePlace(names[x], v.volume(), res.Reads)
	})
}

// reclaimTurn is the transaction by which a host writes its hold in a new epoch.
func (s *state) reclaimTurn(v variant, x int) turn {
	return turn{
		decide: func(s *state) (shared.Txn, int64, error) {
			h := &s.hosts[x]
			if !h.has() || !h.rec.Reclaims(h.who.Era.Epoch) {
				return shared.Txn{}, 0, nil
			}
			return noToken(s.place(v, x).Reclaim(h.who, v.volume(), shared.HoldFrom(h.rec, h.who)))
		},
		done: func(s *state, err error, _ int64, executed bool) {
			h := &s.hosts[x]
			switch {
			case err != nil:
				h.reg = registration{}
			case !executed:
				if h.has() && h.rec.Reclaims(h.who.Era.Epoch) {
					h.rec.Node.Hold.Token.Epoch = h.who.Era.Epoch
					h.rec.Node.Hold.Token.Revision = s.place(v, x).Hold.Create
				}
				h.reg.stage = settling
			}
		},
	}
}

// settleTurn is the transaction by which a host shows that it has written its hold in a new epoch.
func (s *state) settleTurn(v variant, x int) turn {
	return turn{
		decide: func(s *state) (shared.Txn, int64, error) { return noToken(s.arrival(x).Settle(s.hosts[x].who)) },
		done: func(s *state, err error, _ int64, _ bool) {
			if err != nil {
				s.hosts[x].reg = registration{}
				return
			}
			s.serve(v, x)
		},
	}
}
