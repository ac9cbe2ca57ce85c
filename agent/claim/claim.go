// Package claim admits and detaches claims. It checks a request, lets the domain (volmgr/volume)
// decide, and stores the decision. It then wakes the queue (agent/reconcile), which mounts or
// unmounts the volume, and waits for the result.
package claim

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// Claim admits a claim. If wait is positive, Claim then waits until the claim is mounted. While it
// waits, it gives conflicting claims that are being detached time to end. If this call made the
// claim and the wait fails, Claim detaches the claim again. It keeps the claim if the agent is
// stopping, because the next agent process continues with the claim.
func (s *Service) Claim(ctx context.Context, id string, ask volume.Request, wait time.Duration) (volume.Record, volume.Claim, error) {
	req := request{Request: ask, Volume: id, Waits: wait > 0}
	if err := s.check(ctx, &req); err != nil {
		return volume.Record{}, volume.Claim{}, err
	}

	waiting := ctx
	if req.Waits {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}

	giveBack, err := s.borrowDescriptor(req)
	if err != nil {
		return volume.Record{}, volume.Claim{}, err
	}
	defer giveBack()

	s.markGuard(ctx, &req)
	made, err := s.admit(ctx, waiting, req)
	if err != nil {
		return volume.Record{}, volume.Claim{}, err
	}

	r, c, err := s.findAdmitted(req)
	if err != nil {
		return r, c, err
	}

	if s.Owners != nil {
		s.Owners.Watch(c.Keeper())
	}
	if c.State != volume.Mounted {
		s.Queue.Advance(req.Volume) // a new request justifies a retry
	}
	if !req.Waits {
		return r, c, nil
	}

	key := waitKey{req.Volume, req.Alloc, c.Seq}
	s.waits.add(key, made)
	r, c, err = s.awaitMounted(waiting, req, c.Seq)
	if err == nil && s.Owners != nil {
		s.Owners.Watch(c.Keeper()) // the mount that owns the claim may be a new one by now
	}
	if s.waits.remove(key, err) && !errors.Is(context.Cause(ctx), volume.ErrStopping) {
		return r, c, s.withdraw(ctx, key, err)
	}

	return r, c, err
}

// checkAlloc refuses an alloc id that the agent cannot store. It is less strict if the alloc
// already has a claim on the volume, because an earlier version of the agent may have accepted the
// id.
func (s *Service) checkAlloc(req *request) error {
	if _, _, err := s.findClaim(req.Volume, req.Alloc); err == nil {
		return volume.CheckID("alloc id", req.Alloc)
	}

	return volume.CheckNewID("alloc id", req.Alloc)
}

// check refuses a request that is invalid in every state of the volume.
func (s *Service) check(ctx context.Context, req *request) error {
	if err := volume.CheckID("volume id", req.Volume); err != nil {
		return err
	}
	if err := s.checkAlloc(req); err != nil {
		return err
	}

	if req.Mode != (call.Capability{}) {
		c := req.Mode
		c.Access = cmp.Or(c.Access, call.SingleNodeWriter)
		c.Attachment = cmp.Or(c.Attachment, call.FileSystem)
		if err := volume.CheckCapability(c); err != nil {
			return err
		}
	}

	if s.Halt != "" {
		return volume.Errorf(volume.ErrRefused, "cannot claim: %s", s.Halt)
	}
	if isClosed(s.Down) {
		return errDown
	}
	if err := checkAt(req, s.Private); err != nil {
		return err
	}
	if err := req.Own.Check(); err != nil {
		return err
	}

	return resolveOwner(ctx, s.Owners, &req.Request)
}

// admit stores the claim. Before that, it waits for conflicting claims that are being detached. It
// reports whether this request made the claim.
func (s *Service) admit(ctx, wait context.Context, req request) (made bool, err error) {
	operation := rand.Text()
	for checked, fetched := false, false; ; {
		r, err := s.awaitVolume(wait, req)
		if err != nil {
			return false, err
		}

		changed := s.Queue.Changed(req.Volume)
		err = s.Store.Change(ctx, req.Volume, func(r volume.Record) (volume.Record, bool, error) {
			full := req.Request
			full.Draining = s.Store.Draining()
			full.Operation = operation
			if s.Leaving != nil {
				full.Leaving = s.Leaving(req.Volume)
			}
			full.StagingPath = s.Paths.StagingPath(r.Volume.PluginID, r.Volume.ID)
			full.Target = s.Paths.TargetPath(r.Volume.PluginID, req.Alloc, r.Volume.ID, full.Private())
			next, err := volume.Admit(r, full, s.Plugins.View(r.Volume.PluginID).Info, time.Now().UTC())
			made = len(next.Claims) != len(r.Claims)
			return next, made, err
		})
		if errors.Is(err, volume.ErrRefused) && !checked && checkOwners(ctx, s.Owners, r) {
			checked = true // the owner of the conflicting claim may have just ended
			continue
		}

		if errors.Is(err, volume.ErrNotFound) && s.Fetch != nil && !fetched {
			fetched = true // the queue may have just forgotten the record of a shared volume
			continue
		}
		if volume.IsDetaching(err) {
			s.reapAll(ctx, req.Volume)
		}
		if err == nil || !req.Waits || !volume.IsDetaching(err) {
			s.Events.emitDecision(req, made, err)
			return made && err == nil, err
		}

		select {
		case <-changed:
		case <-s.Down:
			return false, errDown
		case <-wait.Done():
			return false, ended(wait, err)
		}
	}
}

// awaitMounted waits until the claim is mounted, mounting has finally failed, or ctx ends.
func (s *Service) awaitMounted(ctx context.Context, req request, seq uint64) (volume.Record, volume.Claim, error) {
	woken, pending := false, false
	for {
		changed := s.Queue.Changed(req.Volume)
		r, c, err := s.findAdmitted(req)
		pending = pending || err == nil && c.State == volume.Pending
		switch {
		case err != nil:
			return r, c, err
		case !c.Wanted || c.Seq != seq:
			return r, c, detachedError(req)
		case c.State == volume.Mounted && (pending || s.Queue.InPlace(ctx, r, req.Alloc)):
			return r, c, nil // if the claim was mounted during this wait, its mounts are new
		case c.State == volume.Mounted && !woken:
			// Another process has unmounted the volume, or the mount no longer works. Do not return
			// the path yet: a write to it would go to the host's own disk.
			woken = true
			s.Queue.Wake(req.Volume)
		}

		at := s.Queue.Attempt(req.Volume, req.Alloc)
		if hasFailed(at, req.Alloc) {
			return r, c, &volume.Awaited{Err: at.Err, At: *at}
		}

		plugin := s.Plugins.Changed(r.Volume.PluginID)
		if err := s.checkPlugin(r); err != nil {
			return r, c, err
		}

		select {
		case <-changed:
		case <-plugin:
		case <-s.Down:
			return r, c, errDown
		case <-ctx.Done():
			// the agent may have begun another step since the last read
			at = s.Queue.Attempt(req.Volume, req.Alloc)
			return r, c, s.mountTimeout(ctx, at, r)
		}
	}
}
