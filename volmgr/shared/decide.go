package shared

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
)

// mostTries limits how often a decision is repeated because other hosts change the same keys. tryAgain is
// the pause after a lost answer.
const (
	mostTries = 50
	tryAgain  = 100 * time.Millisecond
)

// ReadFence reads the keys that decide about the fencing of a host.
func ReadFence(ctx context.Context, store Store, own, host string) (Fence, error) {
	incarnation, writer := uint64(0), ""
	for range mostTries {
		res, err := store.Do(ctx, Txn{Then: FenceReads(own, host, incarnation, writer)})
		if err != nil {
			return Fence{}, err
		}
		fc, complete, err := ParseFence(own, host, incarnation, writer, res.Reads)
		if err != nil || complete {
			return fc, err
		}

		incarnation = fc.Node.Value.Incarnation
		if is := fc.Node.Value.Fencing; is != nil {
			writer = is.By
		}
	}
	return Fence{}, busy(host)
}

// Decide reads, decides and executes. If other hosts change the keys meanwhile, or an answer was lost, it
// decides again on the keys as they are. An empty transaction executes nothing.
func Decide[T any](ctx context.Context, store Store, host string, read func(context.Context) (T, error), by func(T) (Txn, error)) (T, error) {
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
		case errors.Is(err, ErrUnknownOutcome):
			backoff.Pause(ctx, tryAgain)
		case err != nil:
			return is, err
		}
		if ctx.Err() != nil {
			return is, fmt.Errorf("%w: %w", ErrUnreachable, ctx.Err())
		}
	}

	var none T
	return none, busy(host)
}

// busy returns the error for a host whose keys change all the time.
func busy(host string) error {
	return fmt.Errorf("host %q is changed by other hosts all the time: %w", host, ErrUnreachable)
}
