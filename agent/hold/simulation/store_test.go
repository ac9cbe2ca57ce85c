package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/volmgr/shared"
)

// requestTimeout is how long a client of the store waits for an answer.
const requestTimeout = 4 * time.Second

// link is the connection of one agent to the store. Each request takes time, and may get lost.
type link struct {
	a     *agent
	inner *memory.Store
}

var _ shared.Store = (*link)(nil)

// errCut is the error of a request that did not reach the store.
var errCut = &shared.StoreError{Kind: shared.ErrUnreachable, Reason: "no connection"}

// travel waits while a message is on its way. It returns an error if nothing waits for the message any more.
func (l *link) travel(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-l.a.dead:
		return context.Canceled
	}
}

// leave waits until the process of the agent runs, and until a request has reached the store.
func (l *link) leave(ctx context.Context, name string) (back time.Duration, err error) {
	w := l.a.h.w
	w.sent.Add(1)
	l.a.gate()
	if l.a.gone() {
		return 0, context.Canceled
	}

	r := w.draw(l.a.h.name + name)
	way := time.Duration(200+r.IntN(1800)) * time.Microsecond
	if r.Float64() < w.troubles().slow {
		way += time.Duration(r.IntN(1500)) * time.Millisecond
	}
	if err := l.travel(ctx, way); err != nil {
		return way, err
	}
	if w.cut(l.a.h) {
		if err := l.travel(ctx, time.Duration(r.Int64N(int64(requestTimeout)))); err != nil {
			return way, err
		}
		return way, errCut
	}
	return way, nil
}

// arrive waits until the answer of a request has reached the process of the agent. It returns an error if
// the answer is lost.
func (l *link) arrive(ctx context.Context, back time.Duration) error {
	err := l.travel(ctx, back)
	if l.a.h.w.cut(l.a.h) && err == nil {
		err = l.travel(ctx, requestTimeout)
		if err == nil {
			err = shared.ErrUnreachable
		}
	}
	l.a.gate()
	if l.a.gone() {
		return context.Canceled
	}
	return err
}

// Do implements shared.Store.
func (l *link) Do(ctx context.Context, t shared.Txn) (shared.Result, error) {
	if err := ctx.Err(); err != nil {
		return shared.Result{}, err
	}
	w, writes := l.a.h.w, changes(t)
	name := " do"
	if writes {
		name = " write " + t.Then[0].Key
	}

	back, err := l.leave(ctx, name)
	r := w.draw(l.a.h.name + " fate" + name)
	if err != nil && !errors.Is(err, shared.ErrUnreachable) {
		if writes && back > 0 && r.IntN(2) == 0 {
			l.executeLate(t, back) // the request is on its way
		}
		if back == 0 {
			return shared.Result{}, err
		}
		return shared.Result{}, fmt.Errorf("%w (%w)", shared.ErrUnknownOutcome, err)
	}
	if err != nil {
		return shared.Result{}, err
	}

	f := w.troubles()
	chance := r.Float64()
	if writes && chance < f.late {
		w.count("fault: transaction executed late")
		l.executeLate(t, time.Duration(r.Int64N(int64(8*time.Second))))
		return shared.Result{}, l.lost(ctx, back)
	}
	if writes && chance < f.late+f.lost/2 {
		w.count("fault: transaction lost")
		return shared.Result{}, l.lost(ctx, back)
	}

	result, err := w.judge.execute(l.a.h.name, l.inner, t)
	if err != nil {
		return result, err
	}
	if writes && chance < f.late+f.lost {
		w.count("fault: answer of a transaction lost")
		return shared.Result{}, l.lost(ctx, back)
	}
	if err := l.arrive(ctx, back); err != nil {
		return shared.Result{}, fmt.Errorf("%w (%w)", shared.ErrUnknownOutcome, err)
	}
	return result, nil
}

// lost waits for an answer that does not arrive.
func (l *link) lost(ctx context.Context, back time.Duration) error {
	_ = l.travel(ctx, back+time.Second)
	l.a.gate()
	return shared.ErrUnknownOutcome
}

// executeLate executes a transaction after a time. No process awaits its answer. A store that was restored
// meanwhile does not know of it.
func (l *link) executeLate(t shared.Txn, after time.Duration) {
	w := l.a.h.w
	epoch := w.epochs.Load()
	time.AfterFunc(after, func() {
		if w.epochs.Load() == epoch {
			inner := w.server.Open(prefix) // the client may be closed
			_, _ = w.judge.execute(l.a.h.name, inner, t)
		}
	})
}

// changes reports whether a transaction changes a key.
func changes(t shared.Txn) bool {
	for _, op := range t.Then {
		if op.Kind != shared.OpGet {
			return true
		}
	}
	return false
}

// request makes a request that is no transaction.
func request[T any](ctx context.Context, l *link, name string, do func() (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	back, err := l.leave(ctx, name)
	if err != nil {
		return none, err
	}
	got, err := do()
	if err != nil {
		return none, err
	}
	if err := l.arrive(ctx, back); err != nil {
		return none, err
	}
	return got, nil
}

// Range implements shared.Store.
func (l *link) Range(ctx context.Context, s shared.Span, limit int, revision int64) (shared.Page, error) {
	return request(ctx, l, " range", func() (shared.Page, error) { return l.inner.Range(ctx, s, limit, revision) })
}

// Grant implements shared.Store.
func (l *link) Grant(ctx context.Context, ttl time.Duration) (shared.Lease, error) {
	return request(ctx, l, " grant", func() (shared.Lease, error) { return l.inner.Grant(ctx, ttl) })
}

// Renew implements shared.Store.
func (l *link) Renew(ctx context.Context, id shared.Lease) (left time.Duration, revision int64, err error) {
	_, err = request(ctx, l, " renew", func() (bool, error) {
		left, revision, err = l.inner.Renew(ctx, id)
		return true, err
	})
	return left, revision, err
}

// Revoke implements shared.Store.
func (l *link) Revoke(ctx context.Context, id shared.Lease) error {
	_, err := request(ctx, l, " revoke", func() (bool, error) { return true, l.inner.Revoke(ctx, id) })
	return err
}

// ClusterID implements shared.Store.
func (l *link) ClusterID(ctx context.Context) (string, error) {
	return request(ctx, l, " id", func() (string, error) { return "store", nil })
}

// Close implements shared.Store.
func (l *link) Close() error { return l.inner.Close() }

// Watch implements shared.Store. The events wait while the host is cut off, and while the agent is paused.
func (l *link) Watch(ctx context.Context, spans []shared.Span, from int64) <-chan shared.Events {
	out := make(chan shared.Events)
	go func() {
		defer close(out)
		for events := range l.inner.Watch(ctx, spans, from) {
			for l.a.h.w.cut(l.a.h) && ctx.Err() == nil {
				_ = l.travel(ctx, 250*time.Millisecond)
			}
			if err := l.travel(ctx, time.Millisecond); err != nil {
				return
			}
			l.a.gate()
			select {
			case out <- events:
			case <-ctx.Done():
				return
			case <-l.a.dead:
				return
			}
		}
	}()
	return out
}
