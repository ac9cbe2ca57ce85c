package claim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// waitKey identifies one claim. If the same alloc claims the volume again, the new claim has a
// different sequence number (Seq).
type waitKey struct {
	volume, alloc string
	seq           uint64
}

// waiters counts the calls that wait for one claim. made is true if one of these calls made the
// claim. If all calls time out, the service detaches a claim that they made.
type waiters struct {
	n    int
	made bool
}

// waits contains the waiters of each claim.
type waits struct {
	mu      sync.Mutex
	waiting map[waitKey]*waiters
}

// add adds a call to the count of calls that wait for the claim.
func (ws *waits) add(key waitKey, made bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()

	if ws.waiting == nil {
		ws.waiting = map[waitKey]*waiters{}
	}
	w, ok := ws.waiting[key]
	if !ok {
		w = &waiters{}
		ws.waiting[key] = w
	}

	w.n++
	w.made = w.made || made
}

// remove removes one call from the count of waiting calls. It reports whether the caller must
// detach the claim. This is so if the wait of this call failed, no other call waits for the claim,
// and one of the waiting calls made the claim.
func (ws *waits) remove(key waitKey, err error) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()

	w := ws.waiting[key]
	if w.n--; w.n == 0 {
		delete(ws.waiting, key)
	}
	if err == nil {
		w.made = false // a caller has received the claim, so the claim stays
	}

	return err != nil && w.made && w.n == 0
}

// mountTimeout returns the error for a wait that ended before the volume was mounted.
func (s *Service) mountTimeout(ctx context.Context, at *volume.Attempt, r volume.Record) error {
	p := s.Plugins.View(r.Volume.PluginID)
	switch {
	case at != nil && at.Err != nil:
		return awaited(ctx, at, fmt.Errorf("%w (%s)", at.Err, tried(at)))
	case at != nil && r.Volume.Shared && at.Action.Cause == volume.CausePlugin: // another host may make the controller calls
		return volume.Errorf(volume.ErrPluginUnavailable, "volume %q is not mounted: %s", r.Volume.ID, at.Action.Reason).
			WithRemedy(p.Remedy(r.Volume.PluginID))
	case p.Apart != nil && lack(p, r, at) != "":
		return volume.Errorf(volume.ErrPluginUnavailable, "volume %q is not mounted: %s", r.Volume.ID, lack(p, r, at)).
			WithRemedy(p.Remedy(r.Volume.PluginID))
	case at != nil && at.Action.Cause == volume.CauseCluster:
		return volume.Errorf(volume.ErrPluginUnavailable, "volume %q is not mounted: %s", r.Volume.ID, at.Action.Reason).
			WithHint("is etcd up, and does its log show a reason? See cluster.endpoints in the configuration of volagent")
	case p.Apart == nil && !p.Ready:
		return volume.Errorf(volume.ErrPluginUnavailable, "volume %q is not mounted: plugin %q is %s", r.Volume.ID, r.Volume.PluginID, p.State).
			WithRemedy(p.Remedy(r.Volume.PluginID))
	case at != nil && at.Action.Reason != "":
		return ended(ctx, errors.New(at.Action.Reason))
	case at != nil:
		return ended(ctx, fmt.Errorf("volume %q is not mounted yet: %s has not answered", r.Volume.ID, at.Action.Kind))
	default:
		return ended(ctx, fmt.Errorf("volume %q is not mounted yet", r.Volume.ID))
	}
}

// hasFailed reports whether a step that the claim needs has finally failed.
func hasFailed(at *volume.Attempt, alloc string) bool {
	return final(at) && at.Action.Wanted() && (at.Action.Alloc == "" || at.Action.Alloc == alloc)
}

// final reports whether a step has failed and the queue does not retry it. If the step is running
// or due, its last failure does not count. A new request, for example, makes the step due.
func final(at *volume.Attempt) bool {
	return at != nil && at.Err != nil && at.Err.Final() && !at.Running && at.Next.IsZero()
}

// awaited returns the error of ended, and adds the state of the step to it.
func awaited(ctx context.Context, at *volume.Attempt, why error) error {
	err := ended(ctx, why)
	if !errors.Is(err, volume.ErrTimeout) {
		return err
	}
	return &volume.Awaited{Err: err, At: *at}
}

// tried describes how often a step was tried, and when the next try is due.
func tried(at *volume.Attempt) string {
	words := "1 try"
	if at.Tries != 1 {
		words = fmt.Sprintf("%d tries", at.Tries)
	}
	if in := time.Until(at.Next).Round(time.Second); in > 0 && !at.Running {
		words += fmt.Sprintf(", next in %s", in)
	}

	return words
}

// ended returns the error for a wait that did not succeed. It is an ErrTimeout if the wait reached
// its deadline, and the error of the context if the caller cancelled the wait.
func ended(ctx context.Context, why error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		hint := ""
		var e *volume.Error
		if errors.As(why, &e) {
			hint = suggest.Hint(e.Remedy, e.Hint)
		}
		return &volume.Error{Kind: volume.ErrTimeout, Message: "timed out: " + why.Error(), Hint: hint}
	}

	return ctx.Err()
}

// lack names the part of the plugin that a claim is waiting for. It returns "" if the claim is
// waiting for anything else.
func lack(p plugin.View, r volume.Record, at *volume.Attempt) string {
	switch {
	case at == nil:
		return r.Lack(p)
	case at.Err == nil && at.Action.Cause == volume.CausePlugin:
		return at.Action.Reason
	default:
		return ""
	}
}

// withdraw detaches a claim whose wait failed, and mentions the detach in the error. It uses its
// own deadline, because the caller may have cancelled the request.
func (s *Service) withdraw(ctx context.Context, key waitKey, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()

	if _, err := s.endClaim(ctx, key.volume, key.alloc, key.seq, volume.WithPlugin); err != nil && !errors.Is(err, volume.ErrNotFound) {
		return errors.Join(why, fmt.Errorf("cannot withdraw the claim: %w", err))
	}

	s.Events.emit(key.volume, key.alloc, volume.EventClaimWithdrawn, why.Error())
	return &withdrawn{why}
}

// withdrawn wraps an error, and adds to its text that the agent has detached the claim.
type withdrawn struct{ error }

func (w *withdrawn) Error() string { return w.error.Error() + "; the claim was withdrawn" }
func (w *withdrawn) Unwrap() error { return w.error }

// errDown is the error for a claim while this host shuts down.
var errDown = volume.Errorf(volume.ErrRefused, "cannot claim: this host is shutting down")

// isClosed reports whether a channel is closed.
func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
