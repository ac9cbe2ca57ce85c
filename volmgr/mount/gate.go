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
	kindWalk    kind = "walk to"
	kindUnmount kind = "unmount"
	kindForce   kind = "force unmount of"
	kindLazy    kind = "lazy unmount of"
	kindScan    kind = "scan for users of"
	kindOwn     kind = "change the owner of"
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
	key   slotKey
	since time.Time
	done  chan struct{} // closed when it returned
}

func (s *slot) held() *slot { return s }

// job is a call for a goroutine to make: a *call of any type.
type job interface {
	run()
	held() *slot
}

// gate holds the outstanding calls, and nothing of those that returned, and
// the goroutines that linger for the next.
type gate struct {
	mu   sync.Mutex
	busy map[slotKey]*slot
	crew crew
}

// start begins a call, unless one is outstanding on the same key: that one it
// returns. It never waits for a goroutine: where none is idle, it starts one.
func (g *gate) start(j job) (other *slot) {
	s := j.held()
	g.mu.Lock()
	if other = g.busy[s.key]; other != nil {
		g.mu.Unlock()
		return other
	}
	if g.busy == nil {
		g.busy = map[slotKey]*slot{}
	}
	s.since = time.Now()
	g.busy[s.key] = s
	idle := g.crew.take()
	g.mu.Unlock()
	if idle != nil {
		idle <- j
	} else {
		go g.serve(j)
	}
	return nil
}

// serve makes a call, and then others for as long as the goroutine is kept.
func (g *gate) serve(j job) {
	next := make(chan job, 1) // with room, so that who gives a call never waits
	for more := true; more && g.serveOne(j, next); {
		j, more = <-next
	}
}

// serveOne makes one call and reports whether the goroutine is kept for more.
// A call that ends its goroutine gives back the slot too.
func (g *gate) serveOne(j job, next chan job) (kept bool) {
	returned := false
	defer func() {
		s := j.held()
		g.mu.Lock()
		delete(g.busy, s.key)
		// Before its caller is told: who makes one call after another then
		// finds the same goroutine again.
		kept = returned && g.crew.add(next, g.sweep)
		g.mu.Unlock()
		close(s.done)
	}()
	j.run()
	returned = true
	return false
}

// sweep ends the goroutines that were of no use since the last time.
func (g *gate) sweep() {
	g.mu.Lock()
	gone := g.crew.dismiss()
	g.mu.Unlock()
	for _, next := range gone {
		close(next)
	}
}

// call is a call that was begun, or is to be when the one before it returned.
type call[T any] struct {
	slot
	gate  *gate
	bound time.Duration
	fn    func() (T, error)

	before *slot // the one before it on the same key; nil once this one is begun
	err    error // that it was not begun, or fn's
	val    T
}

// bounded runs fn, which may block for ever, and waits for it no longer than
// the bound. A call that is outstanding on the same key is waited for as long
// as it is within its own bound, never shared: its answer may be older than
// this question. It fails with *HungError, also past the context's deadline, with
// the context's error, or with fn's.
func bounded[T any](ctx context.Context, h *Host, k kind, path string, bound time.Duration, fn func() (T, error)) (T, error) {
	return begin(ctx, h, k, path, bound, fn).wait(ctx)
}

// begin is bounded in two halves, for calls that are to run side by side: it
// starts fn unless one is outstanding, and returns what to wait for.
func begin[T any](ctx context.Context, h *Host, k kind, path string, bound time.Duration, fn func() (T, error)) *call[T] {
	c := &call[T]{slot: slot{key: slotKey{k, path}, done: make(chan struct{})}, gate: &h.gate, bound: bound, fn: fn}
	if c.err = ctx.Err(); c.err != nil {
		close(c.done)
		return c
	}
	c.before = c.gate.start(c)
	return c
}

func (c *call[T]) run() { c.val, c.err = c.fn() }

// wait is the second half of bounded.
func (c *call[T]) wait(ctx context.Context) (T, error) {
	var none T
	for c.before != nil {
		if err := c.before.wait(ctx, c.bound); err != nil {
			return none, err
		}
		if err := ctx.Err(); err != nil {
			return none, err
		}
		c.before = c.gate.start(c)
	}
	// val and err are read only after done is closed.
	if err := c.slot.wait(ctx, c.bound); err != nil {
		return none, err
	}
	return c.val, c.err
}

// timers are stopped ones, for the next wait.
var timers = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}}

// wait returns nil when the call returned, and an error when it is past its
// bound, the caller's own, or the caller goes away.
func (s *slot) wait(ctx context.Context, bound time.Duration) error {
	select {
	case <-s.done:
		return nil
	default:
	}
	timer := timers.Get().(*time.Timer)
	timer.Reset(max(time.Until(s.since.Add(bound)), 0))
	defer func() {
		timer.Stop() // and nothing of it is in the channel any more
		timers.Put(timer)
	}()
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
		return &HungError{Call: string(s.key.kind), Path: s.key.path, Since: s.since}
	}
}
