package fence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
	"github.com/volagent/volagent/volmgr/shared"
)

// mostTries limits how often a decision is repeated because other hosts change the same keys. tryAgain is
// the pause after a lost answer.
const (
	mostTries = 50
	tryAgain  = 100 * time.Millisecond
)

// preventers returns the hosts that use a volume.
func (f *Fencer) preventers(ctx context.Context, id string) (hosts []string, err error) {
	page, err := f.Store.Range(ctx, shared.Span{Key: shared.UseKey(id)}, 1, 0)
	if err != nil || len(page.KVs) == 0 {
		return nil, err
	}
	use, err := shared.Decode[shared.Use](page.KVs[0])
	if err != nil {
		return nil, err
	}
	if host := use.Value.Holder; host != "" {
		hosts = append(hosts, host)
	}

	err = shared.Each(ctx, f.Store, shared.Users(id), func(kv shared.KV) error {
		if host, ok := shared.LastID(kv.Key); ok {
			hosts = append(hosts, host)
		}
		return nil
	})
	return hosts, err
}

// readFence reads the keys that decide about the fencing of a host.
func (f *Fencer) readFence(ctx context.Context, host string) (shared.Fence, error) {
	return ReadFence(ctx, f.Store, f.Node, host)
}

// ReadFence reads the keys that decide about the fencing of a host.
func ReadFence(ctx context.Context, store shared.Store, own, host string) (shared.Fence, error) {
	incarnation, writer := uint64(0), ""
	for range mostTries {
		res, err := store.Do(ctx, shared.Txn{Then: shared.FenceReads(own, host, incarnation, writer)})
		if err != nil {
			return shared.Fence{}, err
		}
		fc, complete, err := shared.ParseFence(own, host, incarnation, writer, res.Reads)
		if err != nil || complete {
			return fc, err
		}

		incarnation = fc.Node.Value.Incarnation
		if is := fc.Node.Value.Fencing; is != nil {
			writer = is.By
		}
	}
	return shared.Fence{}, busy(host)
}

// readLost reads the keys that decide about one volume of a host.
func (f *Fencer) readLost(ctx context.Context, host, id string) (shared.Lost, error) {
	fc, err := f.readFence(ctx, host)
	if err != nil {
		return shared.Lost{}, err
	}
	res, err := f.Store.Do(ctx, shared.Txn{Then: shared.Reads(host, id)})
	if err != nil {
		return shared.Lost{}, err
	}
	sit, err := shared.ParseSituation(host, id, res)
	return shared.Lost{Fence: fc, Situation: sit}, err
}

// decideFence executes a decision about the fencing of a host. It returns the keys on which the last
// decision was based.
func (f *Fencer) decideFence(ctx context.Context, host string, by func(shared.Fence) (shared.Txn, error)) (shared.Fence, error) {
	return Decide(ctx, f.Store, host, func(ctx context.Context) (shared.Fence, error) { return f.readFence(ctx, host) }, by)
}

// decideLost executes a decision about one volume of a host. It returns the keys on which the last
// decision was based.
func (f *Fencer) decideLost(ctx context.Context, host, id string, by func(shared.Lost) (shared.Txn, error)) (shared.Lost, error) {
	return Decide(ctx, f.Store, host, func(ctx context.Context) (shared.Lost, error) { return f.readLost(ctx, host, id) }, by)
}

// Decide reads, decides and executes. If other hosts change the keys meanwhile, or an answer was lost, it
// decides again on the keys as they are. An empty transaction executes nothing.
func Decide[T any](ctx context.Context, store shared.Store, host string, read func(context.Context) (T, error), by func(T) (shared.Txn, error)) (T, error) {
	for range mostTries {
		is, err := read(ctx)
		if err != nil {
			return is, err
		}
		txn, err := by(is)
		if err != nil || len(txn.Then) == 0 {
			return is, err
		}

		res, err := store.Do(ctx, txn)
		switch {
		case err == nil && res.Done:
			return is, nil
		case errors.Is(err, shared.ErrUnknownOutcome):
			backoff.Pause(ctx, tryAgain)
		case err != nil:
			return is, err
		}
		if ctx.Err() != nil {
			return is, fmt.Errorf("%w: %w", shared.ErrUnreachable, ctx.Err())
		}
	}

	var none T
	return none, busy(host)
}

// busy returns the error for a host whose keys change all the time.
func busy(host string) error {
	return fmt.Errorf("host %q is changed by other hosts all the time: %w", host, shared.ErrUnreachable)
}
