package mount

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// kind is a kind of call. The gate runs only one call at a time for each kind and path.
type kind string

// The values of kind are words for messages. Each way to unmount is a separate kind, because a
// forced unmount must not wait for the hanging call that it is meant to end.
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

// scanFactor multiplies the time limit for a walk over all processes. Such a walk reads much data
// from the kernel, but nothing from storage.
const scanFactor = 6

// HungError reports that a call did not return within its time limit. The call may have taken
// effect already, or may take effect later.
type HungError struct {
	Call  string    // the kind of call, such as "look at" or "unmount"
	Path  string    // the path or the device of the call
	Since time.Time // when the hanging call began
}

func (e *HungError) Error() string { return fmt.Sprintf("%s %q: %s", e.Call, e.Path, e.since()) }

func (e *HungError) since() string { return "no answer since " + e.Since.Format(time.RFC3339) }

type slotKey struct {
	kind kind
	path string
}

// slot describes one running call.
type slot struct {
	key   slotKey
	since time.Time
	done  chan struct{} // closed when the call has returned
}

func (s *slot) held() *slot { return s }

// job is a *call[T] with any result type T.
type job interface {
	run()
	held() *slot
}

// gate holds the running calls, and the goroutines that wait for the next call.
type gate struct {
	bound time.Duration // the time limit of a call; calls of kindScan have a longer limit
	mu    sync.Mutex
	busy  map[slotKey]*slot
	crew  crew
}

// start begins the call j, unless another call with the same key is running. In that case it
// returns the other call. A waiting goroutine runs j or, if there is none, a new goroutine.
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

// serve makes a call, and then further calls as long as serveOne returns true.
func (g *gate) serve(j job) {
	next := make(chan job, 1) // buffered, so that sending a call never blocks
	for more := true; more && g.serveOne(j, next); {
		j, more = <-next
	}
}

// serveOne makes one call, and reports whether the goroutine now waits in the crew for its next
// call. It frees the slot even if the call ends its goroutine.
func (g *gate) serveOne(j job, next chan job) (kept bool) {
	returned := false
	defer func() {
		s := j.held()
		g.mu.Lock()
		delete(g.busy, s.key)

		// The goroutine joins the crew of waiting goroutines before the caller gets the result. A
		// caller that makes several calls one after another then always gets the same goroutine.
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

// call is one call. It is running, or it starts when another call with the same key has returned.
type call[T any] struct {
	slot
	gate  *gate
	bound time.Duration
	fn    func() (T, error)

	before *slot // the running call with the same key; nil after this call has started
	err    error // the reason why the call did not start, or the error of fn
	val    T
}

// bounded runs fn, which may block forever, and waits for the result no longer than the time limit.
// If a call with the same key is already running, bounded first waits for that call, up to the time
// limit of that call. It then still runs fn, because the result of the other call may be outdated.
// It fails with *HungError (also after the context's deadline), with the context's error, or with
// the error of fn.
func bounded[T any](ctx context.Context, g *gate, k kind, path string, fn func() (T, error)) (T, error) {
	return begin(ctx, g, k, path, fn).wait(ctx)
}

// do runs fn in the same way as bounded. It is for calls without a result.
func (g *gate) do(ctx context.Context, k kind, path string, fn func() error) error {
	_, err := bounded(ctx, g, k, path, func() (struct{}, error) { return struct{}{}, fn() })
	return err
}

// begin is the first half of bounded, for callers that make calls in parallel. It starts fn unless
// another call with the same key is running. The caller must then call wait.
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

// wait is the second half of bounded. It waits for the call that begin returned, and starts that
// call first if necessary.
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

	// The goroutine writes val and err before it closes done. Only after that may they be read.
	if err := c.slot.wait(ctx, c.bound); err != nil {
		return none, err
	}
	return c.val, c.err
}

// timers holds stopped timers for reuse.
var timers = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}}

// wait waits until the call has returned. It returns an error if the time limit of the call or the
// context ends first.
func (s *slot) wait(ctx context.Context, bound time.Duration) error {
	select {
	case <-s.done:
		return nil
	default:
	}

	timer := timers.Get().(*time.Timer)
	timer.Reset(max(time.Until(s.since.Add(bound)), 0))
	defer func() {
		timer.Stop()
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
	case <-s.done: // the call returned in time, but this goroutine ran late
		return nil
	default:
		return &HungError{Call: string(s.key.kind), Path: s.key.path, Since: s.since}
	}
}
