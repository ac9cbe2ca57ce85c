// Package memory is a shared.Store in memory, for tests. It has the semantics of etcd: revisions,
// atomic transactions, leases, watches and compaction. Its clock advances only with Advance, and its
// faults happen only where a test injects them.
package memory

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
)

// Server is the state that several stores share, like one etcd cluster.
type Server struct {
	mu        sync.Mutex
	revision  int64
	compacted int64               // older revisions are gone
	history   []shared.Change     // all changes after compacted, in order
	keys      []string            // all names that have versions, in ascending order
	versions  map[string][]record // the versions of each key, in order of their revisions
	leases    map[shared.Lease]*lease
	lastLease shared.Lease
	now       time.Duration
	full      bool
	late      []func()
	changed   chan struct{} // closed and replaced with each change
	progress  int           // number of progress notifications that were requested
}

// record is one version of a key.
type record struct {
	shared.KV
	deleted bool
}

// lease is one lease with its keys.
type lease struct {
	ttl  time.Duration
	ends time.Duration // compared with Server.now
	keys map[string]bool
}

// New returns an empty server.
func New() *Server {
	return &Server{
		revision: 1, // as in a new etcd
		versions: map[string][]record{},
		leases:   map[shared.Lease]*lease{},
		changed:  make(chan struct{}),
	}
}

// Advance moves the clock, and ends the leases whose time is over, in the order of their ends.
func (s *Server) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now += d
	ids := slices.SortedFunc(maps.Keys(s.leases), func(a, b shared.Lease) int {
		return cmp.Or(cmp.Compare(s.leases[a].ends, s.leases[b].ends), cmp.Compare(a, b))
	})
	for _, id := range ids {
		if s.leases[id].ends <= s.now {
			s.endLease(id)
		}
	}
}

// Compact forgets the history before a revision. The state at that revision stays.
func (s *Server) Compact(revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if revision <= s.compacted || revision > s.revision {
		return
	}
	s.compacted = revision
	s.history = slices.DeleteFunc(s.history, func(c shared.Change) bool { return c.Mod < revision })
	s.keys = slices.DeleteFunc(s.keys, func(key string) bool {
		list := s.versions[key]
		newest := 0 // the last version that is visible at the revision
		for i, v := range list {
			if v.Mod <= revision {
				newest = i
			}
		}
		list = slices.Clone(list[newest:])
		if len(list) == 1 && list[0].deleted && list[0].Mod <= revision {
			delete(s.versions, key)
			return true
		}
		s.versions[key] = list
		return false
	})
	s.wake()
}

// SetFull makes the server refuse all transactions that put a key, or accept them again.
func (s *Server) SetFull(full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = full
}

// Progress makes each watch deliver a progress notification.
func (s *Server) Progress() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress++
	s.wake()
}

// Late returns the number of transactions that are waiting to be executed late.
func (s *Server) Late() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.late)
}

// ExecuteLate executes one of the transactions that are waiting, and forgets it. Index 0 is the
// oldest.
func (s *Server) ExecuteLate(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	execute := s.late[i]
	s.late = slices.Delete(s.late, i, i+1)
	execute()
}

// Revision returns the newest revision.
func (s *Server) Revision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision
}

// wake tells the watches that there is something to deliver.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// endLease deletes the keys of a lease in one revision, as etcd does.
func (s *Server) endLease(id shared.Lease) {
	l := s.leases[id]
	delete(s.leases, id)
	revision := s.revision + 1
	for _, key := range slices.Sorted(maps.Keys(l.keys)) {
		s.remove(key, revision)
	}
	s.commit(revision)
}

// commit makes a revision the newest one if it contains a change.
func (s *Server) commit(revision int64) {
	if n := len(s.history); n > 0 && s.history[n-1].Mod == revision {
		s.revision = revision
		s.wake()
	}
}

// latest returns the newest version of a key that is not newer than a revision.
func (s *Server) latest(key string, revision int64) (shared.KV, bool) {
	list := s.versions[key]
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].Mod <= revision {
			return list[i].KV, !list[i].deleted
		}
	}
	return shared.KV{}, false
}

// read returns the keys of a span at a revision, and whether the limit hides more. 0 means no limit.
func (s *Server) read(span shared.Span, revision int64, limit int) (kvs []shared.KV, more bool) {
	i, _ := slices.BinarySearch(s.keys, span.Key)
	for ; i < len(s.keys) && span.Contains(s.keys[i]); i++ {
		kv, ok := s.latest(s.keys[i], revision)
		if !ok {
			continue
		}
		if limit > 0 && len(kvs) == limit {
			return kvs, true
		}
		kv.Value = slices.Clone(kv.Value) // the caller may change it
		kvs = append(kvs, kv)
	}
	return kvs, false
}

// put sets a key in a revision.
func (s *Server) put(op shared.Op, revision int64) {
	kv := shared.KV{Key: op.Key, Value: slices.Clone(op.Value), Create: revision, Mod: revision, Lease: op.Lease}
	if old, ok := s.latest(op.Key, revision); ok {
		kv.Create = old.Create
		s.leave(old)
	}
	if l := s.leases[op.Lease]; l != nil {
		l.keys[op.Key] = true
	}
	s.add(record{KV: kv}, shared.Change{KV: kv})
}

// remove deletes a key in a revision, if it exists.
func (s *Server) remove(key string, revision int64) {
	old, ok := s.latest(key, revision)
	if !ok {
		return
	}
	s.leave(old)
	gone := shared.KV{Key: key, Mod: revision}
	s.add(record{KV: gone, deleted: true}, shared.Change{KV: gone, Deleted: true})
}

// leave removes a key from its lease.
func (s *Server) leave(kv shared.KV) {
	if l := s.leases[kv.Lease]; l != nil {
		delete(l.keys, kv.Key)
	}
}

// add adds a version of a key, and the change to the history.
func (s *Server) add(r record, c shared.Change) {
	if i, ok := slices.BinarySearch(s.keys, r.Key); !ok {
		s.keys = slices.Insert(s.keys, i, r.Key)
	}
	s.versions[r.Key] = append(s.versions[r.Key], r)
	s.history = append(s.history, c)
}

// execute executes a transaction.
func (s *Server) execute(t shared.Txn) (shared.Result, error) {
	if err := s.checkOps(t.Then); err != nil {
		return shared.Result{}, err
	}
	if err := s.checkOps(t.Else); err != nil {
		return shared.Result{}, err
	}
	result := shared.Result{Done: true}
	for _, c := range t.If {
		result.Done = result.Done && s.holds(c)
	}
	ops := t.Then
	if !result.Done {
		ops = t.Else
	}
	for _, op := range ops {
		if op.Kind == shared.OpPut && op.Lease != 0 && s.leases[op.Lease] == nil {
			return shared.Result{}, shared.ErrLeaseGone
		}
	}

	revision := s.revision + 1
	for _, op := range ops {
		switch op.Kind {
		case shared.OpGet:
			kvs, _ := s.read(op.Span, revision, op.Limit)
			result.Reads = append(result.Reads, kvs)
		case shared.OpPut:
			s.put(op, revision)
		case shared.OpDelete:
			kvs, _ := s.read(op.Span, revision, 0)
			for _, kv := range kvs {
				s.remove(kv.Key, revision)
			}
		}
	}
	s.commit(revision)
	result.Revision = s.revision
	return result, nil
}

// checkOps returns an error if a branch changes a key twice, or if it needs space that is missing.
// Like etcd, it allows two deletions of the same key.
func (s *Server) checkOps(ops []shared.Op) error {
	puts := map[string]bool{}
	for _, op := range ops {
		if op.Kind != shared.OpPut {
			continue
		}
		if s.full {
			return fmt.Errorf("%w (%w)", shared.ErrFull, shared.ErrUnknownOutcome) // as agent/cluster
		}
		if puts[op.Key] {
			return fmt.Errorf("%w: the key %q is put twice", shared.ErrInvalid, op.Key)
		}
		puts[op.Key] = true
	}
	for _, op := range ops {
		if op.Kind != shared.OpDelete {
			continue
		}
		for key := range puts {
			if op.Contains(key) {
				return fmt.Errorf("%w: the key %q is put and deleted", shared.ErrInvalid, key)
			}
		}
	}
	return nil
}

// holds reports whether a condition is true. A span without keys has the revision 0; in others, all
// keys must have the given one.
func (s *Server) holds(c shared.Compare) bool {
	kvs, _ := s.read(c.Span, s.revision, 0)
	if len(kvs) == 0 {
		return c.Revision == 0
	}
	return !slices.ContainsFunc(kvs, func(kv shared.KV) bool {
		if c.Create {
			return kv.Create != c.Revision
		}
		return kv.Mod != c.Revision
	})
}
