package memory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/agent/cluster/storetest"
	"github.com/volagent/volagent/volmgr/shared"
)

func TestStore(t *testing.T) {
	server := memory.New()
	storetest.Run(t, storetest.Backend{
		Open:    func(_ *testing.T, prefix string) shared.Store { return server.Open(prefix) },
		Compact: server.Compact,
		Pass:    server.Advance,
	})
}

// busy is a store in which another client sets a key just before each watch begins.
type busy struct{ shared.Store }

func (b busy) Watch(ctx context.Context, spans []shared.Span, from int64) <-chan shared.Events {
	if _, err := b.Do(ctx, shared.Txn{Then: []shared.Op{shared.Put("f/k", nil)}}); err != nil {
		panic(err)
	}
	return b.Store.Watch(ctx, spans, from)
}

// TestFollowGap checks that Follow loses no change between its reading and its watch.
func TestFollowGap(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	seen := false
	err := shared.Follow(ctx, busy{memory.New().Open("test")}, []shared.Span{shared.Prefix("f/")}, nil, func(u shared.Update) {
		for _, c := range u.Changes {
			seen = seen || c.Key == "f/k"
		}
		if seen {
			cancel()
		}
	})
	if !seen || !errors.Is(err, context.Canceled) {
		t.Errorf("Follow does not deliver the change (%v)", err)
	}
}

// forgetful is a store that deletes a key, sets another one, and forgets its history before the first watch
// begins.
type forgetful struct {
	shared.Store
	server *memory.Server
	began  *bool
}

func (f forgetful) Watch(ctx context.Context, spans []shared.Span, from int64) <-chan shared.Events {
	if !*f.began {
		*f.began = true
		for _, op := range []shared.Op{shared.Delete("f/old"), shared.Put("f/new", nil)} {
			if _, err := f.Do(ctx, shared.Txn{Then: []shared.Op{op}}); err != nil {
				panic(err)
			}
		}
		f.server.Compact(f.server.Revision())
	}
	return f.Store.Watch(ctx, spans, from)
}

// TestFollowCompacted checks invariant I9: Follow delivers a new key and the end of another one, although the
// store has forgotten both changes before the watch could deliver them.
func TestFollowCompacted(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	server := memory.New()
	s := forgetful{server.Open("test"), server, new(bool)}
	if _, err := s.Do(ctx, shared.Txn{Then: []shared.Op{shared.Put("f/old", nil)}}); err != nil {
		t.Fatal(err)
	}

	known, compacted := map[string]bool{}, false
	err := shared.Follow(ctx, s, []shared.Span{shared.Prefix("f/")}, nil, func(u shared.Update) {
		compacted = compacted || errors.Is(u.Err, shared.ErrCompacted)
		for _, c := range u.Changes {
			known[c.Key] = !c.Deleted
		}
		if known["f/new"] && !known["f/old"] {
			cancel()
		}
	})
	if !compacted || !errors.Is(err, context.Canceled) {
		t.Errorf("Follow knows %v, and has seen the compaction: %t (%v)", known, compacted, err)
	}
}

// TestFaults checks whether and when each fault executes a transaction, and its error.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		fault             memory.Fault
		unknown, executed bool
		late              int
	}{
		{memory.Unreachable, false, false, 0},
		{memory.Lost, true, false, 0},
		{memory.LostExecuted, true, true, 0},
		{memory.LostLate, true, false, 1},
	} {
		server := memory.New()
		s := server.Open("test")
		s.SetFaults(func(shared.Txn) memory.Fault { return c.fault })
		_, err := s.Do(t.Context(), shared.Txn{Then: []shared.Op{shared.Put("k", nil)}})
		if !errors.Is(err, shared.ErrUnreachable) || errors.Is(err, shared.ErrUnknownOutcome) != c.unknown {
			t.Errorf("fault %d: the error is %v", c.fault, err)
		}
		if _, err := s.Range(t.Context(), shared.Span{Key: "k"}, 0, 0); !errors.Is(err, shared.ErrUnreachable) {
			t.Errorf("fault %d: the error of a read is %v", c.fault, err)
		}
		s.SetFaults(nil)
		if exists(t, s) != c.executed || server.Late() != c.late {
			t.Errorf("fault %d: executed %v, %d late", c.fault, exists(t, s), server.Late())
		}
		for range c.late {
			server.ExecuteLate(0)
			if !exists(t, s) || server.Late() != 0 {
				t.Errorf("fault %d: not executed late", c.fault)
			}
		}
	}
}

// exists reports whether the key k exists.
func exists(t *testing.T, s shared.Store) bool {
	t.Helper()
	p, err := s.Range(t.Context(), shared.Span{Key: "k"}, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return len(p.KVs) > 0
}
