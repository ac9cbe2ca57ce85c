package memory

import (
	"time"

	"github.com/volagent/volagent/volmgr/shared"
)

// Backup is the state of a Server at one revision.
type Backup struct {
	revision int64
	keys     []string
	versions map[string]record
	leases   map[shared.Lease]time.Duration // their times to live
}

// Backup returns the newest version of each key, as a snapshot of etcd contains it.
func (s *Server) Backup() Backup {
	s.mu.Lock()
	defer s.mu.Unlock()

	b := Backup{revision: s.revision, versions: map[string]record{}, leases: map[shared.Lease]time.Duration{}}
	for _, key := range s.keys {
		if kv, ok := s.latest(key, s.revision); ok {
			b.keys = append(b.keys, key)
			b.versions[key] = record{KV: kv}
		}
	}
	for id, l := range s.leases {
		b.leases[id] = l.ttl
	}
	return b
}

// Restore replaces all keys with those of a backup, which keep their revisions. Every lease begins its time
// again. The newest revision becomes greater than all earlier ones, and all earlier revisions are compacted, as
// after "etcdutl snapshot restore --bump-revision --mark-compacted".
func (s *Server) Restore(b Backup) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.revision = max(s.revision, b.revision) + bump
	s.compacted = s.revision
	s.history, s.late = nil, nil
	s.keys, s.versions, s.leases = nil, map[string][]record{}, map[shared.Lease]*lease{}
	for id, ttl := range b.leases {
		s.leases[id] = &lease{ttl: ttl, ends: s.now + ttl, keys: map[string]bool{}}
	}
	for _, key := range b.keys {
		r := b.versions[key]
		s.keys = append(s.keys, key)
		s.versions[key] = []record{r}
		if l := s.leases[r.Lease]; l != nil {
			l.keys[key] = true
		}
	}
	s.wake()
}

// bump is the distance between the newest revisions before and after a restore.
const bump = 1000
