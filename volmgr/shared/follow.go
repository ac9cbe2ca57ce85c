package shared

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
)

// pageSize is the number of keys in one page of a long read.
const pageSize = 500

// retryFollow are the waits before Follow reads the spans again after a failure.
var retryFollow = backoff.Delays{First: 50 * time.Millisecond, Last: 5 * time.Second}

// Update contains changes that Follow passes to its consumer.
type Update struct {
	// Changes are the changes since the last update. Each key changes to a newer revision, or is
	// deleted. The first update contains all keys.
	Changes []Change
	// Revision is the revision up to which the consumer knows all changes of all spans if Complete is
	// set, and otherwise of at least one span.
	Revision int64
	// Complete means that the changes come from reading all spans. Changes between two states may
	// then be missing: a key that was deleted and created again appears as one change. The Mod of a
	// deleted key is the revision of the reading.
	Complete bool
	// Err says that the consumer's knowledge may be out of date. Follow tries again, and then
	// sends an update that is complete. The other fields are empty.
	Err error
}

// Follow tells a consumer the keys of some spans and all their later changes, until ctx ends. It
// reads the spans at one revision, and then watches from the next one. If the watch fails, also
// because of a compaction, Follow reads again and passes on the differences, deleted keys included.
// So a consumer that applies all updates always reaches the state of the store.
//
// Follow watches the tails as well, but does not read them. The consumer therefore misses changes of the
// tails that happen while no watch runs.
//
// The spans and tails must not overlap. Follow calls apply from one goroutine. It remembers the names and
// revisions of all keys, but not their values. It returns the error of ctx.
func Follow(ctx context.Context, s Store, spans, tails []Span, apply func(Update)) error {
	f := follower{store: s, spans: spans, tails: tails, apply: apply, known: map[string]int64{}}
	for failures := 0; ctx.Err() == nil; {
		revision, err := f.read(ctx)
		if err == nil {
			begin := time.Now()
			err = f.watch(ctx, revision+1)
			if time.Since(begin) > retryFollow.Last {
				failures = 0
			}
		}
		if ctx.Err() != nil {
			break
		}

		apply(Update{Err: err})
		failures++
		wait := time.NewTimer(backoff.Jitter(retryFollow.After(failures)))
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
		wait.Stop()
	}
	return ctx.Err()
}

// follower is the state of Follow.
type follower struct {
	store Store
	spans []Span
	tails []Span
	apply func(Update)
	known map[string]int64 // the revisions of all keys that the consumer knows
}

// read reads all spans at one revision, and passes the differences on. It returns the revision.
func (f *follower) read(ctx context.Context) (int64, error) {
	var revision int64
	u := Update{Complete: true}
	gone := maps.Clone(f.known)
	for _, span := range f.spans {
		for page, err := range pages(ctx, f.store, span, pageSize, revision) {
			if err != nil {
				return 0, fmt.Errorf("cannot read the keys to follow: %w", err)
			}
			revision = page.Revision
			for _, kv := range page.KVs {
				if gone[kv.Key] != kv.Mod {
					u.Changes = append(u.Changes, Change{KV: kv})
				}
				delete(gone, kv.Key)
			}
		}
	}

	for _, key := range slices.Sorted(maps.Keys(gone)) {
		u.Changes = append(u.Changes, Change{KV: KV{Key: key, Mod: revision}, Deleted: true})
	}
	u.Revision = revision
	f.pass(u)
	return revision, nil
}

// watch passes all changes from a revision on, until the watch fails. It returns the reason.
func (f *follower) watch(ctx context.Context, from int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for events := range f.store.Watch(ctx, slices.Concat(f.spans, f.tails), from) {
		if events.Err != nil {
			return events.Err
		}
		f.pass(Update{Changes: events.Changes, Revision: events.Revision})
	}
	return errors.New("the watch of the store has ended")
}

// pass gives an update to the consumer, after it has recorded the revisions.
func (f *follower) pass(u Update) {
	for _, c := range u.Changes {
		if f.inTail(c.Key) {
			continue
		}
		if c.Deleted {
			delete(f.known, c.Key)
		} else {
			f.known[c.Key] = c.Mod
		}
	}
	f.apply(u)
}

// inTail reports whether a key is in one of the tails.
func (f *follower) inTail(key string) bool {
	return slices.ContainsFunc(f.tails, func(s Span) bool { return s.Contains(key) })
}

// Part is a part of the keys of a span.
type Part struct {
	Page
	// First means that the reading begins, or begins again because of a compaction. The consumer
	// discards the parts before.
	First bool
}

// RangeAll returns all keys of a span in parts of at most size keys. All parts since the last one
// with First set have the same revision. Each restart reads a newer state, and the sequence ends
// with an error if there are too many restarts, or another error happens.
func RangeAll(ctx context.Context, s Store, span Span, size int) iter.Seq2[Part, error] {
	return func(yield func(Part, error) bool) {
		for restarts := 0; ; restarts++ {
			err := onePass(ctx, s, span, size, yield)
			switch {
			case errors.Is(err, errStop), err == nil:
				return
			case !errors.Is(err, ErrCompacted) || restarts == maxRestarts:
				yield(Part{}, err)
				return
			}
		}
	}
}

// Each calls fn for each key of a span, page by page. The pages may have different revisions. Each stops
// with the first error of fn.
func Each(ctx context.Context, s Store, span Span, fn func(KV) error) error {
	for {
		page, err := s.Range(ctx, span, pageSize, 0)
		if err != nil {
			return err
		}
		for _, kv := range page.KVs {
			if err := fn(kv); err != nil {
				return err
			}
			span = span.After(kv.Key)
		}
		if !page.More {
			return nil
		}
	}
}

// maxRestarts is the number of times that RangeAll begins again. A store that is compacted more often
// during one reading is not usable.
const maxRestarts = 20

// errStop means that the consumer of RangeAll has stopped.
var errStop = errors.New("stop")

// onePass yields all keys of a span at one revision.
func onePass(ctx context.Context, s Store, span Span, size int, yield func(Part, error) bool) error {
	first := true
	for page, err := range pages(ctx, s, span, size, 0) {
		if err != nil {
			return err
		}
		if !yield(Part{Page: page, First: first}, nil) {
			return errStop
		}
		first = false
	}
	return nil
}

// pages returns the pages of a span, all at one revision; 0 means the newest. It yields an error as
// its last element.
func pages(ctx context.Context, s Store, span Span, size int, revision int64) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		for {
			page, err := s.Range(ctx, span, size, revision)
			if !yield(page, err) || err != nil || !page.More {
				return
			}
			revision = page.Revision
			span.Key = page.KVs[len(page.KVs)-1].Key + "\x00" // the next possible key
		}
	}
}
