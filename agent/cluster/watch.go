package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/volagent/volagent/volmgr/backoff"
	"github.com/volagent/volagent/volmgr/shared"
)

// rewatch are the waits before a watch that etcd ended begins again.
var rewatch = backoff.Delays{First: 50 * time.Millisecond, Last: 2 * time.Second}

// Watch implements shared.Store. All watches of a Store share one gRPC stream. Each span has a few
// goroutines while it is watched. A watch survives lost connections and a missing leader: it then
// continues after the last change that it delivered. Only compaction, refused access and Close end it.
func (s *Store) Watch(ctx context.Context, spans []shared.Span, from int64) <-chan shared.Events {
	out := make(chan shared.Events)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(errClosed) })

	s.watching.Add(1)
	s.watches.Add(1)
	s.progress.Do(func() { go s.requestProgress() })

	// The first failure of a span ends the other spans too.
	var group sync.WaitGroup
	for _, span := range spans {
		group.Go(func() {
			if err := s.watchSpan(ctx, span, from, out); err != nil {
				cancel(err)
			}
		})
	}
	go func() {
		defer s.watches.Done()
		if len(spans) == 0 {
			<-ctx.Done()
		}
		group.Wait()
		stop()
		s.finish(ctx, out)
		cancel(nil)
	}()
	return out
}

// errClosed ends the watches of a Store that is closed.
var errClosed = fmt.Errorf("the store is closed: %w", shared.ErrUnreachable)

// finish delivers the error that ended a watch, unless the caller ended it, and closes its channel.
func (s *Store) finish(ctx context.Context, out chan<- shared.Events) {
	s.watching.Add(-1)
	defer close(out)
	err := context.Cause(ctx)
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return
	}
	// The caller reads until the channel is closed, unless its context has ended. A caller that does
	// neither must not keep Close waiting.
	select {
	case out <- shared.Events{Err: fmt.Errorf("the watch has ended: %w", err)}:
	case <-time.After(lastWords):
	}
}

// lastWords is the longest time that a watch waits for its caller to take the final error.
const lastWords = time.Second

// watchSpan delivers the changes of one span until ctx ends. It returns the error that ends the watch.
func (s *Store) watchSpan(ctx context.Context, span shared.Span, from int64, out chan<- shared.Events) error {
	for failures := 0; ; {
		next, err := s.watchOnce(ctx, span, from, out)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the caller has ended the watch
		}
		if next > from {
			from, failures = next, 0
		}
		if errors.Is(err, errToken) {
			// If the login fails, the next attempt shows the reason.
			s.login.token.Store(nil)
		} else if err != nil && !errors.Is(err, shared.ErrUnreachable) {
			return err
		}
		failures++
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(backoff.Jitter(rewatch.After(failures))):
		}
	}
}

// watchOnce delivers the changes of one span until etcd ends the watch. It returns the revision from
// which the watch must continue, and the reason for the end.
func (s *Store) watchOnce(ctx context.Context, span shared.Span, from int64, out chan<- shared.Events) (int64, error) {
	ctx, cancel := context.WithCancel(ctx) // the client needs it to free the watch
	defer cancel()
	if err := s.checkFirst(ctx); err != nil {
		return from, err
	}

	key, end := s.keys.span(span)
	options := []clientv3.OpOption{clientv3.WithRev(from), clientv3.WithProgressNotify(), clientv3.WithFragment()}
	if end != nil {
		options = append(options, clientv3.WithRange(string(end)))
	}
	// A server without a leader may be cut off from the others, and would be silent.
	for r := range s.client.Watch(clientv3.WithRequireLeader(ctx), string(key), options...) {
		if err := r.Err(); err != nil {
			return from, s.watchError(err, r.CompactRevision)
		}
		events := s.events(r)
		if events.Revision < from {
			continue // a progress notification of a watch that begins in the future
		}
		select {
		case out <- events:
			from = events.Revision + 1
		case <-ctx.Done():
			return from, nil
		}
	}
	return from, fmt.Errorf("%w: etcd has ended the watch", shared.ErrUnreachable)
}

// checkFirst logs in and checks the version, with the time limit of a call.
func (s *Store) checkFirst(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	return s.check(ctx)
}

// watchError returns the reason for the end of a watch as one of the errors in shared.
func (s *Store) watchError(err error, compacted int64) error {
	if compacted > 0 {
		return fmt.Errorf("%w: the oldest revision is %d", shared.ErrCompacted, compacted)
	}
	if errors.Is(err, rpctypes.ErrFutureRev) {
		// The client says so if the server ends a watch without a reason.
		return fmt.Errorf("%w: etcd has ended the watch", shared.ErrUnreachable)
	}
	if _, reason, ok := strings.Cut(err.Error(), " desc = "); ok {
		err = errors.New(reason) // etcd sends the reason as the text of a gRPC error
	}
	return notExecuted(classify(err, true))
}

// events converts a response of the etcd client. The revision of a progress notification is the last
// one of which the watch has delivered all changes.
func (s *Store) events(r clientv3.WatchResponse) shared.Events {
	events := shared.Events{Revision: r.Header.GetRevision()}
	for _, e := range r.Events {
		change := shared.Change{KV: s.keys.kvOf(e.Kv), Deleted: e.Type == clientv3.EventTypeDelete}
		if change.Deleted {
			change.KV = shared.KV{Key: change.Key, Mod: change.Mod}
		}
		events.Changes = append(events.Changes, change)
	}
	if n := len(events.Changes); n > 0 {
		events.Revision = events.Changes[n-1].Mod
	}
	return events
}

// requestProgress asks etcd from time to time how far the watches are, until Close.
// Without changes, the answers are the only sign that the watches work.
func (s *Store) requestProgress() {
	tick := time.NewTicker(s.o.Progress)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		if s.watching.Load() == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(s.ctx, s.o.Timeout)
		_ = s.client.RequestProgress(clientv3.WithRequireLeader(ctx)) // without a connection, the next request is soon enough
		cancel()
	}
}
