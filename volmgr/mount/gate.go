package mount

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// kind classifies bounded calls. The gate runs only one call at a time for each kind and path.
type kind string

// The kinds of calls, as they appear in messages. Each way to unmount is a kind of its own, because
// a forced unmount must not wait for the hanging call that it is meant to end.
const (
	kindLook    kind = "look at"
	kindChange  kind = "change"
	kindWalk    kind = "walk to"
	kindUnmount kind = "unmount"
	kindForce   kind = "force unmount of"
	kindLazy    kind = "lazy unmount of"
	kindScan    kind = "scan for users of"
	kindOwn     kind = "change the owner of"

	kindCanary kind = "test whether mounts are shared below"
)

// scanFactor is multiplied with the normal time limit for a walk over all processes. Such a walk
// reads much data from the kernel, but nothing from storage.
const scanFactor = 6

// HungError reports that a call did not return within its time limit. The call may have taken
// effect already, or may take effect later.
type HungError struct {
	Call  string    // "look at", "unmount"…
	Path  string    // a path or a device
	Since time.Time // when the hanging call began
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
	done  chan struct{} // closed when the call has returned
}

func (s *slot) held() *slot { return s }

// job is a call that a goroutine makes: a *call of any result type.
type job interface {
	run()
	held() *slot
}

// gate holds the running calls, and the goroutines that wait for the next call. It forgets a call
// that has returned.
type gate struct {
	bound time.Duration // the time limit of a call, except kindScan
	mu    sync.Mutex
	busy  map[slotKey]*slot
	crew  crew
}

// start begins a call, unless another call with the same key is running. In that case it returns
// the other call. It never waits for a goroutine: if none is idle, it starts a new one.
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

// serve makes a call, and then further calls as long as the crew keeps the goroutine.
func (g *gate) serve(j job) {
	next := make(chan job, 1) // buffered, so that sending a call never blocks
	for more := true; more && g.serveOne(j, next); {
		j, more = <-next
	}
}

// serveOne makes one call and reports whether the crew keeps the goroutine for more calls. It frees
// the slot even if the call ends its goroutine.
func (g *gate) serveOne(j job, next chan job) (kept bool) {
	returned := false
	defer func() {
		s := j.held()
		g.mu.Lock()
		delete(g.busy, s.key)

		// The goroutine joins the crew before its caller learns the result. A caller that makes one
		// call after another then always gets the same goroutine.
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

// call is a call that has begun, or that begins when the previous call with the same key returns.
type call[T any] struct {
	slot
	gate  *gate
	bound time.Duration
	fn    func() (T, error)

	before *slot // the running call with the same key; nil once this call has begun
	err    error // the reason why the call did not begin, or the error of fn
	val    T
}

// bounded runs fn, which may block forever, and waits for it no longer than the time limit. If a
// call with the same key is running, bounded first waits for that call, within that call's own
// limit. It never returns the result of that call, because the result may be older than this
// request. It fails with *HungError (also after the context's deadline), with the context's error,
// or with the error of fn.
func bounded[T any](ctx context.Context, g *gate, k kind, path string, fn func() (T, error)) (T, error) {
	return begin(ctx, g, k, path, fn).wait(ctx)
}

// do is like bounded, for a call without a result.
func (g *gate) do(ctx context.Context, k kind, path string, fn func() error) error {
	_, err := bounded(ctx, g, k, path, func() (struct{}, error) { return struct{}{}, fn() })
	return err
}

// begin is the first half of bounded, for callers that make calls in parallel. It starts fn unless
// another call with the same key is running. The caller then calls wait.
func begin[T any](ctx context.Context, g *gate, k kind, path string, fn func() (T, error)) *call[T] {
	c := &call[T]{slot: slot{key: slotKey{k, path}, done: make(chan struct{})}, gate: g, bound: g.bound, fn: fn}
	if k == kindScan {
		c.bound *= scanFactor
	}
	if c.err = ctx.Err(); c.err != nil {
		close(c.done)
		return c
	}
	c.before = c.gate.start(c)
	return c
}

func (c *call[T]) run() { c.val, c.err = c.fn() }

// wait is the second half of bounded. It waits for the call that begin returned.
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

	// The goroutine writes val and err before it closes done, so they are read only after that.
	if err := c.slot.wait(ctx, c.bound); err != nil {
		return none, err
	}
	return c.val, c.err
}

// timers caches stopped timers for reuse by wait.
var timers = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}}

// wait returns nil when the call has returned. It returns an error when the caller's time limit is
// over or the caller's context ends.
func (s *slot) wait(ctx context.Context, bound time.Duration) error {
	select {
	case <-s.done:
		return nil
	default:
	}

	timer := timers.Get().(*time.Timer)
	timer.Reset(max(time.Until(s.since.Add(bound)), 0))
	defer func() {
		timer.Stop() // a stopped timer leaves nothing in its channel
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
	case <-s.done: // the call returned in time, and only this select ran late
		return nil
	default:
		return &HungError{Call: string(s.key.kind), Path: s.key.path, Since: s.since}
	}
}
