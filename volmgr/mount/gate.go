package mount

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// kind sorts bounded calls: of one kind, one path has one call outstanding.
type kind string

// Kinds of call, as they read in a message. The ways to unmount are apart,
// because a forced one is what frees a look or a plain unmount that hangs.
const (
	kindLook    kind = "look at"
	kindChange  kind = "change"
	kindUnmount kind = "unmount"
	kindForce   kind = "force unmount of"
	kindLazy    kind = "lazy unmount of"
	kindScan    kind = "scan for users of"
)

// HungError says that a call got no answer within the bound. What it asked for
// may have happened, and may still happen.
type HungError struct {
	Call  string    // "look at", "unmount"…
	Path  string    // or the device
	Since time.Time // when the call that hangs was made
}

// Error implements error.
func (e *HungError) Error() string { return fmt.Sprintf("%s %q: %s", e.Call, e.Path, e.since()) }

func (e *HungError) since() string { return "no answer since " + e.Since.Format(time.RFC3339) }

type slotKey struct {
	kind kind
	path string
}

// slot is one outstanding call.
type slot struct {
	since time.Time
	done  chan struct{} // closed when it returned
}

// gate holds the outstanding calls, and nothing of those that returned.
type gate struct {
	mu   sync.Mutex
	busy map[slotKey]*slot
}

// take gives the slot to the caller, or says who has it.
func (g *gate) take(key slotKey) (s *slot, mine bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.busy[key]; s != nil {
		return s, false
	}
	if g.busy == nil {
		g.busy = map[slotKey]*slot{}
	}
	s = &slot{since: time.Now(), done: make(chan struct{})}
	g.busy[key] = s
	return s, true
}

func (g *gate) release(key slotKey, s *slot) {
	g.mu.Lock()
	delete(g.busy, key)
	g.mu.Unlock()
	close(s.done)
}

// bounded runs fn, which may block for ever, and waits for it no longer than
// the bound. A call that is outstanding on the same key is waited for as long
// as it is within its own bound, never shared: its answer may be older than
// this question. It fails with *HungError, also past the context's deadline, with
// the context's error, or with fn's.
func bounded[T any](ctx context.Context, h *Host, k kind, path string, bound time.Duration, fn func() (T, error)) (T, error) {
	return begin(ctx, h, k, path, bound, fn)()
}

// begin is bounded in two halves, for calls that are to run side by side: it
// starts fn unless one is outstanding, and returns the wait for it.
func begin[T any](ctx context.Context, h *Host, k kind, path string, bound time.Duration, fn func() (T, error)) (wait func() (T, error)) {
	var none T
	key := slotKey{k, path}
	if err := ctx.Err(); err != nil {
		return func() (T, error) { return none, err }
	}
	s, mine := h.gate.take(key)
	if !mine {
		return func() (T, error) {
			if err := s.wait(ctx, key, bound); err != nil {
				return none, err
			}
			return begin(ctx, h, k, path, bound, fn)()
		}
	}
	var val T
	var err error
	go func() {
		defer h.gate.release(key, s)
		val, err = fn()
	}()
	return func() (T, error) {
		// val and err are read only after done is closed.
		if werr := s.wait(ctx, key, bound); werr != nil {
			return none, werr
		}
		return val, err
	}
}

// wait returns nil when the call returned, and an error when it is past its
// bound, the caller's own, or the caller goes away.
func (s *slot) wait(ctx context.Context, key slotKey, bound time.Duration) error {
	left := time.Until(s.since.Add(bound))
	timer := time.NewTimer(max(left, 0))
	defer timer.Stop()
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return ctx.Err()
		}
	case <-timer.C:
	}
	select {
	case <-s.done: // it was this wait that began late, not the call that took long
		return nil
	default:
		return &HungError{Call: string(key.kind), Path: key.path, Since: s.since}
	}
}
