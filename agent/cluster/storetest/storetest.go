// Package storetest checks that an implementation of shared.Store has the semantics that the cluster
// needs. Only tests import this package.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
)

// patience is the longest time that a condition may take.
const patience = 30 * time.Second

// Backend is a server for several stores.
type Backend struct {
	// Open returns a store whose keys have a prefix.
	Open func(t *testing.T, prefix string) shared.Store
	// Compact forgets the history before a revision.
	Compact func(revision int64)
	// Pass lets time pass for leases. It may return before the time has passed.
	Pass func(time.Duration)
}

// suite is one run with a store of its own.
type suite struct {
	*testing.T
	backend Backend
	prefix  string
	s       shared.Store
}

// Run runs all checks. Each check uses its own prefix.
func Run(t *testing.T, b Backend) {
	for name, check := range map[string]func(*suite){
		"compare":        checkCompare,
		"compare-span":   checkCompareSpan,
		"branches":       checkBranches,
		"reads":          checkReads,
		"invalid":        checkInvalid,
		"pages":          checkPages,
		"history":        checkHistory,
		"range-all":      checkRangeAll,
		"lease":          checkLease,
		"revoke":         checkRevoke,
		"watch":          checkWatch,
		"watch-past":     checkWatchPast,
		"watch-compact":  checkWatchCompact,
		"watch-boundary": checkWatchBoundary,
		"watch-end":      checkWatchEnd,
		"two-stores":     checkTwoStores,
		"isolation":      checkIsolation,
		"large":          checkLarge,
		"cancel":         checkCancel,
		"cluster-id":     checkClusterID,
		"follow":         checkFollow,
		"contention":     checkContention,
		"close":          checkClosed,
	} {
		t.Run(name, func(t *testing.T) {
			prefix := "test/" + strings.ReplaceAll(t.Name(), "/", "-")
			check(&suite{T: t, backend: b, prefix: prefix, s: b.Open(t, prefix)})
		})
	}
}

// do executes a transaction that must not fail.
func (s *suite) do(t shared.Txn) shared.Result {
	s.Helper()
	r, err := s.s.Do(s.Context(), t)
	if err != nil {
		s.Fatal(err)
	}
	return r
}

// put sets a key and returns the revision.
func (s *suite) put(key, value string) int64 {
	s.Helper()
	return s.do(shared.Txn{Then: []shared.Op{shared.Put(key, []byte(value))}}).Revision
}

// remove deletes a key and returns the revision.
func (s *suite) remove(key string) int64 {
	s.Helper()
	return s.do(shared.Txn{Then: []shared.Op{shared.Delete(key)}}).Revision
}

// read returns the keys of a span at a revision.
func (s *suite) read(span shared.Span, revision int64) []shared.KV {
	s.Helper()
	p, err := s.s.Range(s.Context(), span, 0, revision)
	if err != nil {
		s.Fatal(err)
	}
	return p.KVs
}

// get returns one key.
func (s *suite) get(key string) (shared.KV, bool) {
	s.Helper()
	kvs := s.read(shared.Span{Key: key}, 0)
	if len(kvs) == 0 {
		return shared.KV{Key: key}, false
	}
	return kvs[0], true
}

// await waits until a condition is true.
func (s *suite) await(what string, condition func() bool) {
	s.Helper()
	for end := time.Now().Add(patience); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("this does not happen: %s", what)
		}
	}
}

// text describes keys as "key=value" in their order.
func text(kvs []shared.KV) string {
	var words []string
	for _, kv := range kvs {
		words = append(words, kv.Key+"="+string(kv.Value))
	}
	return strings.Join(words, " ")
}

// describe describes changes as "key=value@revision" or "-key@revision", with revisions relative to a
// base.
func describe(changes []shared.Change, base int64) string {
	var words []string
	for _, c := range changes {
		word := c.Key + "=" + string(c.Value)
		if c.Deleted {
			word = "-" + c.Key
		}
		words = append(words, fmt.Sprintf("%s@%d", word, c.Mod-base))
	}
	return strings.Join(words, " ")
}

// collect reads events until there are n changes.
func (s *suite) collect(ch <-chan shared.Events, n int) (changes []shared.Change) {
	s.Helper()
	timeout := time.After(patience)
	for len(changes) < n {
		select {
		case e, ok := <-ch:
			if !ok || e.Err != nil {
				s.Fatalf("the watch has ended: %v; changes: %s", e.Err, describe(changes, 0))
			}
			if k := len(e.Changes); k > 0 && e.Revision != e.Changes[k-1].Mod {
				s.Errorf("the revision of the events is %d, and of their last change %d", e.Revision, e.Changes[k-1].Mod)
			}
			changes = append(changes, e.Changes...)
		case <-timeout:
			s.Fatalf("only %d of %d changes: %s", len(changes), n, describe(changes, 0))
		}
	}
	return changes
}

// is fails the test if an error does not wrap another one.
func (s *suite) is(err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Errorf("the error is %v, want %v", err, want)
	}
}

// equal fails the test if two values differ.
func equal[T comparable](s *suite, what string, got, want T) {
	s.Helper()
	if got != want {
		s.Errorf("%s: %v, want %v", what, got, want)
	}
}

// checkClusterID checks that all stores of one server have one id.
func checkClusterID(s *suite) {
	first, err := s.s.ClusterID(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	second, err := s.backend.Open(s.T, s.prefix+"-b").ClusterID(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	if first == "" || first != second {
		s.Errorf("the stores have the ids %q and %q", first, second)
	}
}

// checkCancel checks the error of a call whose context has ended.
func checkCancel(s *suite) {
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	_, err := s.s.Do(ctx, shared.Txn{Then: []shared.Op{shared.Put("k", nil)}})
	s.is(err, context.Canceled)
	_, err = s.s.Range(ctx, shared.Span{Key: "k"}, 0, 0)
	s.is(err, context.Canceled)
	if _, ok := s.get("k"); ok {
		s.Error("the store executed a transaction whose context had ended")
	}
}

// checkClosed checks that a store that is closed refuses calls and ends its watches.
func checkClosed(s *suite) {
	other := s.backend.Open(s.T, s.prefix)
	ch := other.Watch(s.Context(), []shared.Span{{Key: "k"}}, 1)
	if err := other.Close(); err != nil {
		s.Fatal(err)
	}
	_, err := other.Do(s.Context(), shared.Txn{Then: []shared.Op{shared.Put("k", nil)}})
	s.is(err, shared.ErrUnreachable)
	for range ch { // until the channel is closed
	}
	if _, ok := s.get("k"); ok {
		s.Error("a closed store executed a transaction")
	}
}

// checkTwoStores checks that two stores with the same prefix see each other's changes.
func checkTwoStores(s *suite) {
	other := s.backend.Open(s.T, s.prefix)
	revision := s.put("k", "1")
	p, err := other.Range(s.Context(), shared.Span{Key: "k"}, 0, 0)
	if err != nil {
		s.Fatal(err)
	}
	equal(s, "the other store reads", text(p.KVs), "k=1")
	ch := other.Watch(s.Context(), []shared.Span{{Key: "k"}}, revision+1)
	s.put("k", "2")
	equal(s, "the other store watches", describe(s.collect(ch, 1), revision), "k=2@1")
}

// checkIsolation checks that a store neither sees nor changes the keys of stores with similar prefixes.
func checkIsolation(s *suite) {
	others := map[string]shared.Store{}
	for _, prefix := range []string{s.prefix + "0", s.prefix[:len(s.prefix)-1], s.prefix + "/v", s.prefix + "."} {
		others[prefix] = s.backend.Open(s.T, prefix)
		_, err := others[prefix].Do(s.Context(), shared.Txn{Then: []shared.Op{shared.Put("a", nil), shared.Put("zz", nil)}})
		if err != nil {
			s.Fatal(err)
		}
	}
	revision := s.put("k", "1")

	all := shared.Span{Key: "\x00", End: "\xff"}
	equal(s, "all keys", text(s.read(all, 0)), "k=1")
	r := s.do(shared.Txn{If: []shared.Compare{{Span: all, Revision: revision}}, Then: []shared.Op{{Kind: shared.OpDelete, Span: all}}})
	equal(s, "the comparison sees only the own key", r.Done, true)
	for prefix, other := range others {
		p, err := other.Range(s.Context(), shared.Span{Key: "a", End: "zzz"}, 0, 0)
		if err != nil {
			s.Fatal(err)
		}
		equal(s, "keys of "+prefix, text(p.KVs), "a= zz=")
	}
}

// checkContention checks that of many transactions with the same condition one succeeds, again and again.
func checkContention(s *suite) {
	const clients, rounds = 8, 10
	won := make(chan string, clients*rounds)
	done := make(chan error, clients)
	for range clients {
		go func() {
			var failed error
			for round := range rounds {
				key := fmt.Sprint("lock/", round)
				r, err := s.s.Do(s.Context(), shared.Txn{If: []shared.Compare{shared.Absent(key)}, Then: []shared.Op{shared.Put(key, nil)}})
				if err != nil {
					failed = err
				} else if r.Done {
					won <- key
				}
			}
			done <- failed
		}()
	}
	for range clients {
		if err := <-done; err != nil {
			s.Error(err)
		}
	}
	close(won)
	var keys []string
	for key := range won {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	equal(s, "different winners", len(slices.Compact(slices.Clone(keys))), rounds)
	equal(s, "winners", len(keys), rounds)
}
