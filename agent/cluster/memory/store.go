package memory

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
)

// Fault is what happens to a call.
type Fault int

// These are the faults. For calls other than Do, all faults mean Unreachable.
const (
	None         Fault = iota
	Unreachable        // the call is not executed, and the caller knows it
	Lost               // the call is not executed, and the caller does not know it
	LostExecuted       // the call is executed, and the caller does not know it
	LostLate           // as Lost, but ExecuteLate executes the transaction afterwards
)

// Store is one client of a Server.
type Store struct {
	server *Server
	prefix string // "<prefix>/v1/"
	ctx    context.Context
	close  context.CancelFunc

	mu     sync.Mutex
	faults func(t shared.Txn) Fault
}

var _ shared.Store = (*Store)(nil)

// Open returns a store whose keys have a prefix.
func (s *Server) Open(prefix string) *Store {
	c := &Store{server: s, prefix: prefix + "/v1/"}
	c.ctx, c.close = context.WithCancel(context.Background())
	return c
}

// SetFaults sets the function that decides about the fault of each call. It gets the transaction of a
// Do, and an empty one for all other calls. nil means no faults. Open watches are not affected.
func (c *Store) SetFaults(faults func(t shared.Txn) Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = faults
}

// begin returns the fault of a call, or the error if the call cannot begin.
func (c *Store) begin(ctx context.Context, t shared.Txn) (Fault, error) {
	if err := ctx.Err(); err != nil {
		return None, err
	}
	if c.ctx.Err() != nil {
		return None, fmt.Errorf("the store is closed: %w", shared.ErrUnreachable)
	}
	c.mu.Lock()
	faults := c.faults
	c.mu.Unlock()
	if faults == nil {
		return None, nil
	}
	f := faults(t)
	if f == Unreachable {
		return f, shared.ErrUnreachable
	}
	return f, nil
}

// call begins a call that is no transaction, and locks the server if there is no error.
func (c *Store) call(ctx context.Context) (unlock func(), err error) {
	f, err := c.begin(ctx, shared.Txn{})
	if err == nil && f != None {
		err = shared.ErrUnreachable
	}
	if err != nil {
		return nil, err
	}
	c.server.mu.Lock()
	return c.server.mu.Unlock, nil
}

// Do implements shared.Store.
func (c *Store) Do(ctx context.Context, t shared.Txn) (shared.Result, error) {
	f, err := c.begin(ctx, t)
	if err != nil {
		return shared.Result{}, err
	}
	t = c.absolute(t)
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	switch f {
	case Lost:
		return shared.Result{}, shared.ErrUnknownOutcome
	case LostExecuted:
		_, _ = s.execute(t)
		return shared.Result{}, shared.ErrUnknownOutcome
	case LostLate:
		s.late = append(s.late, func() { _, _ = s.execute(t) })
		return shared.Result{}, shared.ErrUnknownOutcome
	}

	r, err := s.execute(t)
	for _, kvs := range r.Reads {
		c.strip(kvs)
	}
	return r, err
}

// Range implements shared.Store.
func (c *Store) Range(ctx context.Context, span shared.Span, limit int, revision int64) (shared.Page, error) {
	unlock, err := c.call(ctx)
	if err != nil {
		return shared.Page{}, err
	}
	defer unlock()
	s := c.server
	if revision == 0 {
		revision = s.revision
	}
	if revision < s.compacted || revision > s.revision {
		return shared.Page{}, shared.ErrCompacted
	}
	kvs, more := s.read(c.span(span), revision, limit)
	c.strip(kvs)
	return shared.Page{KVs: kvs, More: more, Revision: revision}, nil
}

// Grant implements shared.Store.
func (c *Store) Grant(ctx context.Context, ttl time.Duration) (shared.Lease, error) {
	unlock, err := c.call(ctx)
	if err != nil {
		return 0, err
	}
	defer unlock()
	s := c.server
	s.lastLease++
	ttl = max(ttl.Truncate(time.Second), time.Second)
	s.leases[s.lastLease] = &lease{ttl: ttl, ends: s.now + ttl, keys: map[string]bool{}}
	return s.lastLease, nil
}

// Renew implements shared.Store.
func (c *Store) Renew(ctx context.Context, id shared.Lease) (left time.Duration, revision int64, err error) {
	unlock, err := c.call(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer unlock()
	l := c.server.leases[id]
	if l == nil {
		return 0, 0, shared.ErrLeaseGone
	}
	l.ends = c.server.now + l.ttl
	return l.ttl, c.server.revision, nil
}

// Revoke implements shared.Store.
func (c *Store) Revoke(ctx context.Context, id shared.Lease) error {
	unlock, err := c.call(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if c.server.leases[id] != nil {
		c.server.endLease(id)
	}
	return nil
}

// ClusterID implements shared.Store.
func (c *Store) ClusterID(ctx context.Context) (string, error) {
	unlock, err := c.call(ctx)
	if err != nil {
		return "", err
	}
	unlock()
	return fmt.Sprintf("%p", c.server), nil
}

// Close implements shared.Store.
func (c *Store) Close() error {
	c.close()
	return nil
}

// Watch implements shared.Store.
func (c *Store) Watch(ctx context.Context, spans []shared.Span, from int64) <-chan shared.Events {
	out := make(chan shared.Events)
	within := make([]shared.Span, len(spans))
	for i, span := range spans {
		within[i] = c.span(span)
	}
	go func() {
		defer close(out)
		next, notified := from, -1
		for {
			events, changed := c.due(within, next, &notified)
			if events.Revision > 0 || events.Err != nil {
				select {
				case out <- events:
				case <-ctx.Done():
					return
				case <-c.ctx.Done(): // the next round reports it
				}
			}
			if events.Err != nil {
				return
			}
			next = max(next, events.Revision+1)
			if changed == nil {
				continue
			}
			select {
			case <-ctx.Done():
				return
			case <-c.ctx.Done():
			case <-changed:
			}
		}
	}()
	return out
}

// due returns the next events of a watch. If there are none, it returns a channel that is closed
// when there may be something.
func (c *Store) due(spans []shared.Span, next int64, notified *int) (shared.Events, <-chan struct{}) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.ctx.Err() != nil:
		return shared.Events{Err: fmt.Errorf("the store is closed: %w", shared.ErrUnreachable)}, nil
	case next < s.compacted:
		return shared.Events{Err: shared.ErrCompacted}, nil
	}
	events := shared.Events{Changes: s.changes(spans, next)}
	if n := len(events.Changes); n > 0 {
		for i := range events.Changes {
			events.Changes[i].Key = strings.TrimPrefix(events.Changes[i].Key, c.prefix)
		}
		events.Revision = events.Changes[n-1].Mod
		return events, nil
	}
	if *notified < 0 {
		*notified = s.progress
	}
	if *notified != s.progress && s.revision >= next-1 {
		*notified = s.progress
		return shared.Events{Revision: s.revision}, nil
	}
	return shared.Events{}, s.changed
}

// changes returns the changes of the spans from a revision on.
func (s *Server) changes(spans []shared.Span, from int64) (changes []shared.Change) {
	first := len(s.history)
	for first > 0 && s.history[first-1].Mod >= from {
		first--
	}
	for _, change := range s.history[first:] {
		for _, span := range spans {
			if span.Contains(change.Key) {
				changes = append(changes, change)
				break
			}
		}
	}
	return changes
}

// absolute returns a transaction with the prefix in its keys.
func (c *Store) absolute(t shared.Txn) shared.Txn {
	conditions := make([]shared.Compare, len(t.If))
	for i, condition := range t.If {
		condition.Span = c.span(condition.Span)
		conditions[i] = condition
	}
	return shared.Txn{If: conditions, Then: c.ops(t.Then), Else: c.ops(t.Else)}
}

// ops returns operations with the prefix in their keys.
func (c *Store) ops(ops []shared.Op) []shared.Op {
	list := make([]shared.Op, len(ops))
	for i, op := range ops {
		op.Span = c.span(op.Span)
		list[i] = op
	}
	return list
}

// span returns a span with the prefix in its keys.
func (c *Store) span(span shared.Span) shared.Span {
	span.Key = c.prefix + span.Key
	if span.End != "" {
		span.End = c.prefix + span.End
	}
	return span
}

// strip removes the prefix from keys.
func (c *Store) strip(kvs []shared.KV) {
	for i := range kvs {
		kvs[i].Key = strings.TrimPrefix(kvs[i].Key, c.prefix)
	}
}
