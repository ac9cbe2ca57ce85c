package mount

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// kind classifies bounded calls. For each kind and path only one call runs at a time.
type kind string

// Kinds of call, as they appear in messages. The ways to unmount are separate kinds, because only a
// forced unmount frees a look or a plain unmount that hangs.
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

// HungError says that a call did not return within its time limit. Its effect may have happened
// already, or may happen later.
type HungError struct {
	Call  string    // "look at", "unmount"…
	Path  string    // a path or a device
	Since time.Time // the start of the call that hangs
}

// Error implements error.
func (e *HungError) Error() string { return fmt.Sprintf("%s %q: %s", e.Call, e.Path, e.since()) }

func (e *HungError) since() string { return "no answer since " + e.Since.Format(time.RFC3339) }

type slotKey struct {
	kind kind
	path string
}

// slot is one running call.
type slot struct {
	key   slotKey
	since time.Time
	done  chan struct{} // closed when the call returns
}

func (s *slot) held() *slot { return s }

// job is a call for a goroutine to make: a *call of any type.
type job interface {
	run()
	held() *slot
}

// gate holds the running calls, and the goroutines that wait for the next call. It keeps nothing
// about calls that returned.
type gate struct {
	mu   sync.Mutex
	busy map[slotKey]*slot
	crew crew
}

// start begins a call, unless another one with the same key is running. In that case it returns the
// other call. It never waits for a goroutine: if none is idle, it starts one.
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

// serve makes a call, and then further calls while the goroutine is kept.
func (g *gate) serve(j job) {
	next := make(chan job, 1) // buffered, so that the sender of a call never waits
	for more := true; more && g.serveOne(j, next); {
		j, more = <-next
	}
}

// serveOne makes one call and reports whether the goroutine is kept for more. The slot is freed
// even if the call ends its goroutine.
func (g *gate) serveOne(j job, next chan job) (kept bool) {
	returned := false
	defer func() {
		s := j.held()
		g.mu.Lock()
		delete(g.busy, s.key)

		// This happens before the caller is told. A caller that makes one call after another then
		// gets the same goroutine again.
		kept = returned && g.crew.add(next, g.sweep)
		g.mu.Unlock()
		close(s.done)
	}()

	j.run()
	returned = true
	return false
}

// sweep ends the goroutines that got no call since the last sweep.
func (g *gate) sweep() {
	g.mu.Lock()
	gone := g.crew.dismiss()
	g.mu.Unlock()
	for _, next := range gone {
		close(next)
	}
}

// call is a call that has begun, or that begins when the one before it returns.
type call[T any] struct {
	slot
	gate  *gate
	bound time.Duration
	fn    func() (T, error)

	before *slot // the call before it with the same key; nil once this one has begun
	err    error // why it did not begin, or the error of fn
	val    T
}

// bounded runs fn, which may block forever, and waits for it no longer than the time limit. If a
// call with the same key is running, bounded first waits for it within that call's own limit. It
// never shares that call's answer, which may be older than this question. It fails with *HungError
// (also after the context's deadline), with the context's error, or with fn's.
func bounded[T any](ctx context.Context, h *Host, k kind, path string, bound time.Duration, fn func() (T, error)) (T, error) {
	return begin(ctx, h, k, path, bound, fn).wait(ctx)
}

// begin is the first half of bounded, for calls that run in parallel. It starts fn unless another
// call with the same key is running, and returns the call to wait for.
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

// timers are stopped timers for reuse by the next wait.
var timers = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}}

// wait returns nil when the call has returned. It returns an error when the call is past the
// caller's limit, or when the caller's context ends.
func (s *slot) wait(ctx context.Context, bound time.Duration) error {
	select {
	case <-s.done:
		return nil
	default:
	}

	timer := timers.Get().(*time.Timer)
	timer.Reset(max(time.Until(s.since.Add(bound)), 0))
	defer func() {
		timer.Stop() // after that its channel is empty
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
	case <-s.done: // only this wait began late; the call did not take long
		return nil
	default:
		return &HungError{Call: string(s.key.kind), Path: s.key.path, Since: s.since}
	}
}
