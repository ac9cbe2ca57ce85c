package claim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// Detach detaches a claim. If wait is positive, it then waits until all mounts of the claim are
// gone. After the wait, the agent continues to unmount. If the claim is already being detached,
// Detach joins that operation. Unless force is set, Detach returns ErrRefused if the owner of the
// claim is alive or may be alive.
func (s *Service) Detach(ctx context.Context, id, alloc string, force bool, wait time.Duration) error {
	return s.detach(ctx, id, alloc, force, volume.WithPlugin, wait)
}

// DetachWithout detaches a claim without calls to the plugin. It abandons a running call. The agent
// then unmounts the volume itself, in the ways that the argument how permits. If a mount is still
// busy, DetachWithout returns ErrRefused at once. The claim then stays detaching, and the agent
// retries. DetachWithout returns a description of each leftover.
func (s *Service) DetachWithout(ctx context.Context, id, alloc string, force bool, how volume.Without, wait time.Duration) (left []string, err error) {
	if err := how.Check(); err != nil {
		return nil, err
	}
	if s.Halt != "" {
		return nil, volume.Errorf(volume.ErrRefused, "cannot unmount: %s", s.Halt)
	}
	if err := s.detach(ctx, id, alloc, force, how, wait); err != nil {
		return nil, err
	}

	r, _ := s.Store.Volume(id)
	return r.Left(), nil
}

func (s *Service) detach(ctx context.Context, id, alloc string, force bool, how volume.Without, wait time.Duration) error {
	for what, v := range map[string]string{"volume id": id, "alloc id": alloc} {
		if err := volume.CheckID(what, v); err != nil {
			return err
		}
	}

	r, before, err := s.findClaim(id, alloc)
	if err != nil {
		return err
	}

	if before.Owner.Mortal() && s.Owners != nil {
		if !force {
			checkOwners(ctx, s.Owners, r)
		}
		if err := volume.MayDetach(id, before, s.Owners.View(before.Keeper()), force); err != nil {
			return err
		}
	}

	if _, err := s.endClaim(ctx, id, alloc, before.Seq, how); err != nil {
		return err
	}

	if how != volume.WithPlugin {
		s.Queue.Abandon(id)
	}
	if wait <= 0 {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()

	return s.awaitFree(ctx, id, before, how)
}

// awaitFree waits until a claim is gone. If the same alloc has a newer claim, the earlier claim is
// gone.
func (s *Service) awaitFree(ctx context.Context, id string, was volume.Claim, how volume.Without) error {
	for {
		changed := s.Queue.Changed(id)
		r, _ := s.Store.Volume(id)
		if c, ok := r.Claims[was.Alloc]; !ok || c.Seq != was.Seq {
			return nil
		}

		at := s.Queue.Attempt(id, was.Alloc)
		switch {
		case final(at) && !at.Action.Wanted():
			return &volume.Awaited{Err: at.Err, At: *at}
		case how != volume.WithPlugin && at != nil && at.Action.How == how && at.Err != nil && !at.Running && at.Next.After(time.Now()):
			return mountStaysError(id, was.Alloc, at)
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return s.detachTimeout(ctx, r, was.Alloc)
		}
	}
}

// detachTimeout returns the error for a claim that is still detaching when the wait ends.
func (s *Service) detachTimeout(ctx context.Context, r volume.Record, alloc string) error {
	at := s.Queue.Attempt(r.Volume.ID, alloc)
	p := s.Plugins.View(r.Volume.PluginID)
	if lacks := lack(p, r, at); p.Apart != nil && lacks != "" {
		return volume.Errorf(volume.ErrPluginUnavailable, "%s. Claim %q is detached; volagent unmounts it when the plugin is ready",
			lacks, alloc).WithRemedy(remedy.Of(remedy.ShowPlugin, r.Volume.PluginID))
	}
	if p.Apart == nil && !p.Ready && (at == nil || at.Err == nil) {
		return volume.Errorf(volume.ErrPluginUnavailable, "plugin %q is %s. Claim %q is detached; volagent unmounts it when the plugin is ready",
			r.Volume.PluginID, p.State, alloc).WithRemedy(remedy.Of(remedy.ShowPlugin, r.Volume.PluginID))
	}

	why := fmt.Sprintf("plugin %q has not answered", r.Volume.PluginID)
	if at != nil && at.Err != nil {
		why = fmt.Sprintf("%v (%s)", at.Err, tried(at))
	} else if at != nil && at.Action.Reason != "" {
		why = at.Action.Reason
	}

	words := &volume.Error{
		Message: fmt.Sprintf("%s. Claim %q is detached; volagent keeps unmounting in the background", why, alloc),
		Hint:    suggest.Command("volctl volume status %s", r.Volume.ID),
	}
	if at != nil && at.Err != nil {
		return awaited(ctx, at, words)
	}

	return ended(ctx, words)
}

// mountStaysError returns the error for a mount that the agent could not remove in the permitted
// way. The hint names the next stronger command.
func mountStaysError(id, alloc string, at *volume.Attempt) error {
	err := volume.Errorf(volume.ErrRefused, "%s; the claim stays detaching, and the agent retries in %s", at.Err.Error(), time.Until(at.Next).Round(time.Second))
	next := at.Action.How.Stronger()
	switch {
	case !at.Err.Remedy.Empty() && next != volume.WithPlugin:
		further := suggest.Command("volctl volume detach %s %s --without-plugin=%s", id, alloc, string(next))
		return err.WithHint("%s; if that fails: %s", suggest.Words(at.Err.Remedy), further)
	case next != volume.WithPlugin:
		return err.WithRemedy(remedy.Of(remedy.DetachWithout, id, alloc, string(next)))
	default:
		return err.WithRemedy(remedy.Of(remedy.ForceDeregister, id))
	}
}

// Drop detaches a claim that its owner no longer needs. When Drop returns, the decision is on disk.
// Drop ignores a newer claim of the same alloc. It returns nil if the claim is already gone.
func (s *Service) Drop(ctx context.Context, id string, c volume.Claim) error {
	_, err := s.endClaim(ctx, id, c.Alloc, c.Seq, volume.WithPlugin)
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}

// Freed waits until all mounts of a dropped claim are gone. After the wait, the agent continues to
// unmount.
func (s *Service) Freed(ctx context.Context, id string, c volume.Claim) error {
	return s.awaitFree(ctx, id, c, volume.WithPlugin)
}
