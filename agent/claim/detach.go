package claim

import (
	"context"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// Detach releases a claim and, if wait is above 0, waits until all of it is
// undone. The release goes on after a wait that ended. Asking again for a
// release that is under way joins it.
func (s *Service) Detach(ctx context.Context, id, alloc string, wait time.Duration) error {
	for what, v := range map[string]string{"volume id": id, "alloc id": alloc} {
		if err := volume.CheckID(what, v); err != nil {
			return err
		}
	}
	_, before, err := s.find(id, alloc)
	if err != nil {
		return err
	}
	if err := s.release(ctx, id, alloc, before.Seq); err != nil {
		return err
	}
	if wait <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return s.freed(ctx, id, before)
}

// release makes the intent durable and wakes the queue. A claim that the same
// alloc made anew is another, and stays.
func (s *Service) release(ctx context.Context, id, alloc string, seq uint64) error {
	var was, now volume.ClaimState
	err := s.Store.Change(ctx, id, func(r volume.Record) (volume.Record, bool, error) {
		if c, ok := r.Claims[alloc]; ok && c.Seq != seq {
			return r, false, nil
		}
		next, err := volume.Release(r, alloc)
		was, now = r.Claims[alloc].State, next.Claims[alloc].State
		return next, next.Claims[alloc] != r.Claims[alloc], err
	})
	if err == nil {
		if was != now {
			s.say(id, alloc, "claim-"+string(now), fmt.Sprintf("%s → %s", was, now))
		}
		s.Queue.Wake(id)
	}
	return err
}

// freed waits until a claim is gone. One that the same alloc made anew since
// is another.
func (s *Service) freed(ctx context.Context, id string, was volume.Claim) error {
	for {
		changed := s.Queue.Changed(id)
		r, _ := s.Store.Volume(id)
		if c, ok := r.Claims[was.Alloc]; !ok || c.Seq != was.Seq {
			return nil
		}
		if at := s.Queue.Attempt(id, was.Alloc); final(at) && !at.Action.Forward() {
			return &volume.Awaited{Err: at.Err, At: *at}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return s.unfinished(ctx, r, was.Alloc)
		}
	}
}

// unfinished says what a release is still waiting for.
func (s *Service) unfinished(ctx context.Context, r volume.Record, alloc string) error {
	at := s.Queue.Attempt(r.Volume.ID, alloc)
	p := s.Plugins.View(r.Volume.PluginID)
	if !p.Ready && (at == nil || at.Err == nil) {
		return volume.Errorf(volume.ErrPluginUnavailable, "the claim of %q is released, but not undone yet: plugin %q is %s; that goes on when it is ready",
			alloc, r.Volume.PluginID, p.State).WithHint("volctl plugin status %s", r.Volume.PluginID)
	}
	why := "no answer yet"
	if at != nil && at.Err != nil {
		why = fmt.Sprintf("%v (%s)", at.Err, tried(at))
	} else if at != nil && at.Action.Reason != "" {
		why = at.Action.Reason
	}
	words := &volume.Error{
		Message: fmt.Sprintf("the claim of %q is released, but not undone yet: %s; that goes on by itself", alloc, why),
		Hint:    "volctl volume status " + r.Volume.ID,
	}
	if at != nil && at.Err != nil {
		return awaited(ctx, at, words)
	}
	return ended(ctx, words)
}
