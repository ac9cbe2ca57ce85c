package storetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
)

// checkWatch checks that a watch delivers the changes of its spans, each once and in order.
func checkWatch(s *suite) {
	base := s.put("start", "")
	ch := s.s.Watch(s.Context(), []shared.Span{shared.Prefix("w/"), {Key: "one"}}, base+1)
	s.put("w/a", "1")
	s.put("beside", "1")
	s.put("one", "1")
	s.put("one-more", "1")
	s.do(shared.Txn{Then: []shared.Op{shared.Put("w/b", []byte("2")), shared.Put("w/c", []byte("3"))}})
	s.remove("w/a")
	s.remove("w/missing")
	s.put("w/b", "4")

	var one, span []shared.Change
	for _, c := range s.collect(ch, 6) {
		if c.Key == "one" {
			one = append(one, c)
		} else {
			span = append(span, c)
		}
		if c.Deleted && (c.Value != nil || c.Create != 0) {
			s.Errorf("the deletion has more than key and revision: %+v", c)
		}
	}
	equal(s, "changes of the key", describe(one, base), "one=1@3")
	equal(s, "changes of the span", describe(span, base), "w/a=1@1 w/b=2@5 w/c=3@5 -w/a@6 w/b=4@7")
	equal(s, "create revision", span[4].Create, base+5)
}

// checkWatchPast checks that a watch delivers the changes before its beginning.
func checkWatchPast(s *suite) {
	base := s.put("w/a", "1")
	s.put("w/a", "2")
	s.remove("w/a")
	s.put("w/b", "3")
	for from, want := range map[int64]string{
		base:     "w/a=1@0 w/a=2@1 -w/a@2 w/b=3@3",
		base + 2: "-w/a@2 w/b=3@3",
	} {
		ch := s.s.Watch(s.Context(), []shared.Span{shared.Prefix("w/")}, from)
		equal(s, fmt.Sprint("from ", from-base), describe(s.collect(ch, len(strings.Fields(want))), base), want)
	}
}

// checkWatchCompact checks that a watch from a compacted revision fails, and a running one does not.
func checkWatchCompact(s *suite) {
	base := s.put("w/a", "1")
	spans := []shared.Span{shared.Prefix("w/")}
	running := s.s.Watch(s.Context(), spans, base)
	s.put("w/a", "2")
	last := s.put("w/a", "3")
	s.collect(running, 3)
	s.backend.Compact(last)

	var failed error
	for e := range s.s.Watch(s.Context(), spans, base) {
		failed = e.Err
		if len(e.Changes) > 0 {
			s.Errorf("a watch from a compacted revision delivers %s", describe(e.Changes, base))
		}
	}
	s.is(failed, shared.ErrCompacted)
	s.put("w/a", "4")
	equal(s, "the running watch", describe(s.collect(running, 1), last), "w/a=4@1")
}

// checkWatchBoundary checks that a watch from the compacted revision itself delivers a deletion in that
// revision. Old versions of etcd lose it.
func checkWatchBoundary(s *suite) {
	s.put("w/a", "1")
	gone := s.remove("w/a")
	s.put("w/a", "2")
	s.backend.Compact(gone)
	ch := s.s.Watch(s.Context(), []shared.Span{shared.Prefix("w/")}, gone)
	equal(s, "changes", describe(s.collect(ch, 2), gone), "-w/a@0 w/a=2@1")
}

// checkWatchEnd checks that the channel is closed without an error when the context ends.
func checkWatchEnd(s *suite) {
	ctx, cancel := context.WithCancel(s.Context())
	base := s.put("w/a", "1")
	ch := s.s.Watch(ctx, []shared.Span{shared.Prefix("w/")}, base)
	s.collect(ch, 1)
	cancel()
	for e := range ch {
		if e.Err != nil {
			s.Errorf("the watch delivers an error: %v", e.Err)
		}
	}
}

// checkLease checks that keys live as long as their lease.
func checkLease(s *suite) {
	const ttl = 2 * time.Second
	l, err := s.s.Grant(s.Context(), ttl)
	if err != nil {
		s.Fatal(err)
	}
	base := s.do(shared.Txn{Then: []shared.Op{shared.PutLeased("live/a", []byte("1"), l), shared.PutLeased("live/b", nil, l), shared.Put("stays", nil)}}).Revision
	kv, _ := s.get("live/a")
	equal(s, "lease of the key", kv.Lease, l)
	ch := s.s.Watch(s.Context(), []shared.Span{shared.Prefix("live/"), {Key: "stays"}}, base+1)
	for range 4 {
		s.backend.Pass(ttl / 2)
		left, revision, err := s.s.Renew(s.Context(), l)
		if err != nil {
			s.Fatal(err)
		}
		equal(s, "remaining time", left, ttl)
		if revision < base {
			s.Fatalf("the revision is %d after a write at %d", revision, base)
		}
	}
	if _, ok := s.get("live/a"); !ok {
		s.Fatal("the key is gone although the lease was renewed")
	}

	s.await("the lease ends", func() bool {
		s.backend.Pass(ttl)
		_, ok := s.get("live/a")
		return !ok
	})
	equal(s, "changes", describe(s.collect(ch, 2), base), "-live/a@1 -live/b@1")
	_, _, err = s.s.Renew(s.Context(), l)
	s.is(err, shared.ErrLeaseGone)
	_, err = s.s.Do(s.Context(), shared.Txn{Then: []shared.Op{shared.Put("other", nil), shared.PutLeased("live/a", nil, l)}})
	s.is(err, shared.ErrLeaseGone)
	equal(s, "keys", text(s.read(shared.Span{Key: "a", End: "z"}, 0)), "stays=")
}

// checkRevoke checks that Revoke deletes the keys that the lease still has, and only those.
func checkRevoke(s *suite) {
	l, err := s.s.Grant(s.Context(), time.Minute)
	if err != nil {
		s.Fatal(err)
	}
	s.do(shared.Txn{Then: []shared.Op{shared.PutLeased("a", nil, l), shared.PutLeased("b", nil, l), shared.PutLeased("c", nil, l)}})
	s.put("b", "without lease")
	s.remove("c")
	s.put("c", "new")
	for range 2 { // the second time, the lease is gone
		if err := s.s.Revoke(s.Context(), l); err != nil {
			s.Fatal(err)
		}
	}
	equal(s, "keys", text(s.read(shared.Span{Key: "a", End: "z"}, 0)), "b=without lease c=new")
}

// checkFollow checks that Follow reaches the state of the store while other clients write and the history
// is compacted.
func checkFollow(s *suite) {
	var mu sync.Mutex
	state, newest := map[string]string{}, map[string]int64{}
	s.put("f/before", "1")
	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan error)
	go func() {
		ended <- shared.Follow(ctx, s.s, []shared.Span{shared.Prefix("f/"), {Key: "single"}}, nil, func(u shared.Update) {
			mu.Lock()
			defer mu.Unlock()
			for _, c := range u.Changes {
				if c.Mod <= newest[c.Key] {
					s.Errorf("the change %s is not newer than %d", describe([]shared.Change{c}, 0), newest[c.Key])
				}
				newest[c.Key] = c.Mod
				if state[c.Key] = string(c.Value); c.Deleted {
					delete(state, c.Key)
				}
			}
		})
	}()

	for i := range 60 {
		key := fmt.Sprintf("f/%d", i%7)
		if i%5 == 4 {
			s.remove(key)
		} else {
			s.put(key, fmt.Sprint(i))
		}
		if i%20 == 19 {
			s.backend.Compact(s.put("single", fmt.Sprint(i)))
		}
	}
	want := map[string]string{}
	for _, kv := range append(s.read(shared.Prefix("f/"), 0), s.read(shared.Span{Key: "single"}, 0)...) {
		want[kv.Key] = string(kv.Value)
	}
	s.await("the follower knows the state", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return maps.Equal(state, want)
	})
	cancel()
	s.is(<-ended, context.Canceled)
	if len(slices.Collect(maps.Keys(want))) < 3 {
		s.Errorf("the state is %v", want)
	}
}
