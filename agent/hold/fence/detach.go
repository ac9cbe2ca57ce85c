package fence

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// A driver may list a node for a short time after it has answered that the node is detached.
const (
	listedWithin = 10 * time.Second
	listedEvery  = 500 * time.Millisecond
)

// detachAll takes volumes over with the proof of a detach.
func (a *attempt) detachAll(ctx context.Context, wants []want) {
	slots := make(chan struct{}, detachesAtOnce)
	var all sync.WaitGroup
	for _, w := range wants {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if err := a.detach(ctx, w.id); err != nil {
				a.fail(ctx, w, err)
			}
		})
	}
	all.Wait()
}

// detach detaches the lost host from one volume, and then drops its hold.
func (a *attempt) detach(ctx context.Context, id string) error {
	l, err := a.readLost(ctx, a.host, id)
	if err != nil {
		return err
	}
	v := l.Situation.Volume.Value.Volume
	v.Shared = true
	p, secrets, within, err := a.Detacher(ctx, v)
	if err != nil {
		return err
	}

	operation := rand.Text()
	begun := false
	l, err = a.decideLost(ctx, a.host, id, func(l shared.Lost) (shared.Txn, error) {
		if begun = l.Announced(a.who, operation); begun {
			return shared.Txn{}, nil
		}
		return l.BeginDetach(a.who, operation, deadline(within), now())
	})
	if err != nil {
		return err
	}

	// An answer that the volume or the node is not known proves nothing.
	nodeID := l.Situation.Hold.Value.NodeID
	err = call.Run(ctx, p, call.ControllerUnpublishRequest{ExternalID: v.ExternalID, NodeID: nodeID, Secrets: secrets})
	if err == nil {
		err = a.Unlisted(ctx, v, nodeID)
	}
	if err != nil {
		a.leave(ctx, id, operation, err)
		return fmt.Errorf("cannot detach it from host %q: %w", a.host, err)
	}
	if err := a.drop(ctx, id, operation); err != nil {
		a.leave(ctx, id, operation, errSettled)
		return err
	}

	a.took(v, "is gone, and was detached from it")
	return nil
}

// Unlisted waits until the driver does not list a node any more to which a volume was attached. It returns an
// error if the driver still lists the node. It returns nil if this host cannot ask the driver, or if the driver
// lists no nodes.
func (f *Fencer) Unlisted(ctx context.Context, v volume.Volume, nodeID string) error {
	for begun := time.Now(); ; backoff.Pause(ctx, listedEvery) {
		nodes, known, err := f.Published(ctx, v)
		switch {
		case err != nil:
			return fmt.Errorf("cannot list the nodes to which the volume is attached: %w%w", err, errSettled)
		case !known || !slices.Contains(nodes, nodeID):
			return nil
		case time.Since(begun) > listedWithin || ctx.Err() != nil:
			return fmt.Errorf("the driver answers that node %q is detached, and still lists it%w", nodeID, errSettled)
		}
	}
}

// drop drops the hold after the detach.
func (a *attempt) drop(ctx context.Context, id, operation string) error {
	select {
	case a.drops <- struct{}{}:
		defer func() { <-a.drops }()
	case <-ctx.Done():
		return ctx.Err()
	}

	_, err := a.decideLost(ctx, a.host, id, func(l shared.Lost) (shared.Txn, error) {
		if !l.Situation.Hold.Exists() && l.Fence.Proof.Value.Has(id) {
			return shared.Txn{}, nil // an earlier transaction with a lost answer has dropped it
		}
		return l.DropDetached(a.who, operation, now())
	})
	return err
}

// leave ends the announced detach without a proof. If the call may still have an effect, it stays
// announced, and the next passes repeat it.
func (a *attempt) leave(ctx context.Context, id, operation string, cause error) {
	var ce *volume.CallError
	answered := errors.As(cause, &ce) && (ce.Unsent || !ce.Uncertain())
	uncertain := !answered && !errors.Is(cause, errSettled)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveWithin)
	defer cancel()
	if _, err := a.decideLost(ctx, a.host, id, func(l shared.Lost) (shared.Txn, error) {
		return l.LeaveDetach(a.who, operation, uncertain)
	}); err != nil {
		a.Log.Warn("cannot end an announced detach; the next pass ends it", "volume", id, "host", a.host, "error", err)
	}
}

// errSettled marks an error after which the detach has no further effect. It has no text.
var errSettled = settled{}

type settled struct{}

func (settled) Error() string { return "" }

// leaveWithin limits the end of a detach.
const leaveWithin = 10 * time.Second

// deadline returns the deadline of a controller call of a plugin.
func deadline(d time.Duration) time.Duration {
	if d <= 0 {
		return time.Minute
	}
	return d
}
