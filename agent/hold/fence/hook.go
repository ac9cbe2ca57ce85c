package fence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
	"github.com/volagent/volagent/volmgr/shared"
)

// While a hook runs, this host looks at the keys of the lost host after each change, and every lookEvery. If
// no look has succeeded for blindFor, the hook is stopped. Another host may have ended the fencing then, and the
// lost host may be alive again. The time is shorter than the lease of this host.
const (
	lookEvery = 3 * time.Second
	blindFor  = 10 * time.Second
)

// askHooks asks the hooks of this host to switch the lost host off.
func (a *attempt) askHooks(ctx context.Context, fc shared.Fence) error {
	names := a.Hooks.Names()
	if len(names) == 0 {
		return errors.New("this host has no fence hook in the fence directory, and no other live host has one, see docs/fence-hooks.md")
	}
	if failed := a.hookFailed(); failed != nil {
		return failed
	}

	asked := strings.Join(names, ", ")
	// The transaction also shows that the host is not alive, and that this agent still fences it.
	if _, err := a.decideFence(ctx, a.host, func(fc shared.Fence) (shared.Txn, error) { return fc.AskHook(a.who, asked, now()) }); err != nil {
		return err
	}
	hook, err := a.switchOff(ctx, asked, fc.Node.Value.Machine)
	if err != nil {
		return err
	}

	_, err = a.decideFence(ctx, a.host, func(fc shared.Fence) (shared.Txn, error) {
		if fc.Node.Value.ProvenOff(fc.Meta.Value) {
			return shared.Txn{}, nil // an earlier transaction with a lost answer has recorded it
		}
		return fc.ProveHook(a.who, hook, now())
	})
	if err == nil {
		a.told(shared.ProvenHook, " by hook "+hook)
	}
	return err
}

// switchOff lets the hooks switch the host off, as long as they may. It returns the hook that did so. A
// hook is stopped when a person declares the host off, or when the host is back.
func (a *attempt) switchOff(ctx context.Context, asked string, m shared.Machine) (hook string, err error) {
	running, stop := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if refused := a.awaitRefusal(running); refused != nil {
			stop(refused)
		}
	}()
	hook, err = a.Hooks.Off(running, a.host, m)
	stop(nil)
	<-watched
	if err == nil {
		return hook, nil // the transaction that records the proof compares the host
	}

	cause := context.Cause(running)
	if ctx.Err() == nil && !errors.Is(cause, context.Canceled) {
		a.noteHook(ctx, asked, "cancelled: "+cause.Error())
		return "", fmt.Errorf("the hooks that switch host %q off were stopped: %w", a.host, cause)
	}
	err = fmt.Errorf("no hook has switched host %q off: %w", a.host, err)
	a.noteHook(ctx, asked, "failed")
	a.setHookFailed(err)
	return "", err
}

// awaitRefusal waits until the hooks must be stopped, and returns the reason. It returns nil if ctx ends.
func (a *attempt) awaitRefusal(ctx context.Context) error {
	spans := []shared.Span{{Key: shared.NodeKey(a.host)}, {Key: shared.LiveKey(a.host)}, {Key: shared.ReturnedKey(a.host)}, {Key: shared.MetaKey}}
	for sure := time.Now(); ctx.Err() == nil; {
		began := time.Now()
		page, err := a.Store.Range(ctx, spans[0], 1, 0) // its revision is not later than that of the look
		fc := shared.Fence{}
		if err == nil {
			fc, err = a.readFence(ctx, a.host)
		}
		switch {
		case err == nil:
			if refused := fc.CheckHook(a.who); refused != nil {
				return refused
			}
			sure = began
			a.awaitChange(ctx, spans, page.Revision+1)
		case ctx.Err() == nil && time.Since(sure) > blindFor:
			return notSeen{err}
		default:
			backoff.Pause(ctx, lookEvery/3)
		}
	}
	return nil
}

// notSeen is the reason for which hooks are stopped if the store does not answer.
type notSeen struct{ error }

func (e notSeen) Error() string {
	return "this host cannot see whether it still fences: " + e.error.Error()
}
func (e notSeen) Unwrap() error { return e.error }

// awaitChange waits until a key of the spans changes, or for lookEvery.
func (a *attempt) awaitChange(ctx context.Context, spans []shared.Span, from int64) {
	ctx, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()

	for evs := range a.Store.Watch(ctx, spans, from) {
		if len(evs.Changes) > 0 {
			return
		}
		if evs.Err != nil {
			break
		}
	}
	<-ctx.Done() // the watch has failed, so the next look follows after the usual time
}

// noteHook records how a request to the hooks has ended. It is only for people, so a failure does no harm.
func (a *attempt) noteHook(ctx context.Context, asked, outcome string) {
	if _, err := a.decideFence(ctx, a.host, func(fc shared.Fence) (shared.Txn, error) { return fc.NoteHook(a.who, asked, outcome) }); err != nil {
		a.Log.Warn("cannot record how the request to the fence hooks has ended", "host", a.host, "outcome", outcome, "error", err)
	}
}

// hookFailed returns the error of the hooks if it is too early to ask them again.
func (a *attempt) hookFailed() error {
	a.Fencer.mu.Lock()
	defer a.Fencer.mu.Unlock()
	if had := a.hook[a.host]; time.Now().Before(had.again) {
		return had.err
	}
	return nil
}

// setHookFailed records the error of the hooks. They are not asked again before HookRetry has passed.
func (a *attempt) setHookFailed(err error) {
	a.Fencer.mu.Lock()
	defer a.Fencer.mu.Unlock()
	a.hook[a.host] = hookFailure{err: err, again: time.Now().Add(a.HookRetry)}
}
