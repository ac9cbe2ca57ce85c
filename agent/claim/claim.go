// Package claim admits and releases claims: validate, decide, persist, wake,
// wait. What is decided is the domain's; what is then done, the queue's.
package claim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// Store holds the records.
type Store interface {
	Volume(id string) (volume.Record, bool)
	// Change runs fn on a volume's record and waits until the result is on
	// disk. It returns ErrNotFound if there is no such volume. A record that
	// fn returns unchanged, by its second result, is not written.
	Change(ctx context.Context, id string, fn func(volume.Record) (volume.Record, bool, error)) error
	// Release is Change for the end of a claim. Where nothing can be written because the
	// data dir can only be read, the result is kept in memory, and that is no error.
	Release(ctx context.Context, id string, fn func(volume.Record) (volume.Record, bool, error)) error
	// Draining reports whether the host is to be emptied. Within fn that is exact.
	Draining() bool
}

// Queue brings volumes to what their claims want.
type Queue interface {
	Wake(id string)
	// Advance is Wake for a claim that was made or is to go.
	Advance(id string)
	Changed(id string) <-chan struct{}
	// Attempt is the step that stands between a claim and what it wants.
	Attempt(id, alloc string) *volume.Attempt
	// Abandon gives up the call in hand for a volume.
	Abandon(id string)
	// Yield breaks off what is done for a volume, where that may be left half done: a
	// claim is to go.
	Yield(id string)
	// InPlace looks whether a claim's mounts are those that were made for it.
	InPlace(ctx context.Context, r volume.Record, alloc string) bool
}

// Plugins tells how a plugin is.
type Plugins interface {
	View(pluginID string) volume.PluginView
	// Changed returns a channel that is closed at the next change of a plugin's state.
	Changed(pluginID string) <-chan struct{}
}

// Paths are where volumes go on this host.
type Paths interface {
	StagingPath(pluginID, id string) string
	TargetPath(pluginID, alloc, id string, private bool) string
}

// Owners tells who is alive.
type Owners interface {
	volume.Owners
	// Resolve completes an owner that a caller named, or refuses it.
	Resolve(ctx context.Context, o volume.Owner) (volume.Owner, error)
	// Watch has Gone know when an owner ends.
	Watch(o volume.Owner)
	// Check asks again about owners, before something is refused because of them.
	Check(ctx context.Context, owners []volume.Owner)
}

// Service admits and releases claims.
type Service struct {
	Store   Store
	Queue   Queue
	Plugins Plugins
	Paths   Paths
	// Places may be nil where no caller lends a descriptor, and no directory is guarded.
	Places Places
	// Owners may be nil where all claims are without an owner.
	Owners Owners
	// Private are directories that no claim may be bound in or over.
	Private []string
	// Halt says why no claim is admitted at all; empty when they are.
	Halt string
	// Down is closed when this host goes down: then no claim is admitted, nor waited
	// for. Nil: it stays up.
	Down <-chan struct{}
	// Coming waits until a volume is registered that is to be, and says why it is not; nil
	// for one that nobody knows of. May be nil.
	Coming func(ctx context.Context, id string) error
	// Events is told what becomes of requests; nil is nobody.
	Events func(...volume.Event)

	mu      sync.Mutex
	waiting map[waitKey]*waiters
}

// waitKey names one claim, and not another that the alloc makes later.
type waitKey struct {
	volume, alloc string
	seq           uint64
}

// waiters are the calls that wait for one claim to be mounted. If one of them
// made it, and all of them give up, it is withdrawn.
type waiters struct {
	n    int
	made bool
}

// request is one call of Claim.
type request struct {
	volume.Request
	Volume string
	Waits  bool
}

// Claim admits a claim and, if wait is above 0, waits until it is mounted. It
// waits also for whoever is in the way and is being released. A claim that was
// made by this call and is not mounted in time is withdrawn, unless the agent
// is being stopped: then the next one goes on with it.
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
	giveBack, err := s.borrow(req)
	if err != nil {
		return volume.Record{}, volume.Claim{}, err
	}
	defer giveBack()
	s.guard(ctx, &req)
	made, err := s.admit(ctx, waiting, req)
	if err != nil {
		return volume.Record{}, volume.Claim{}, err
	}
	r, c, err := s.find(req.Volume, req.Alloc)
	if err != nil {
		return r, c, err
	}
	if s.Owners != nil {
		s.Owners.Watch(c.Keeper())
	}
	if c.State != volume.Taken {
		s.Queue.Advance(req.Volume) // a new request is worth another try
	}
	if !req.Waits {
		return r, c, nil
	}
	key := waitKey{req.Volume, req.Alloc, c.Seq}
	s.join(key, made)
	r, c, err = s.mounted(waiting, req, c.Seq)
	if err == nil && s.Owners != nil {
		s.Owners.Watch(c.Keeper()) // that may be another by now
	}
	if s.leave(key, err) && !errors.Is(context.Cause(ctx), volume.ErrStopping) {
		return r, c, s.withdraw(ctx, key, err)
	}
	return r, c, err
}

// join counts a call that waits for a claim.
func (s *Service) join(key waitKey, made bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil {
		s.waiting = map[waitKey]*waiters{}
	}
	w, ok := s.waiting[key]
	if !ok {
		w = &waiters{}
		s.waiting[key] = w
	}
	w.n++
	w.made = w.made || made
}

// leave counts it out again, and reports whether the claim is to be withdrawn:
// this call was the last to wait for it, in vain, and one of them made it.
func (s *Service) leave(key waitKey, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiting[key]
	if w.n--; w.n == 0 {
		delete(s.waiting, key)
	}
	if err == nil {
		w.made = false // somebody has it now
	}
	return err != nil && w.made && w.n == 0
}

// checkAlloc refuses an alloc's id that cannot be stored. One that has a claim on
// the volume already may be one that is not accepted any more.
func (s *Service) checkAlloc(req *request) error {
	if r, ok := s.Store.Volume(req.Volume); ok {
		if _, has := r.Claims[req.Alloc]; has {
			return volume.CheckID("alloc id", req.Alloc)
		}
	}
	return volume.CheckNewID("alloc id", req.Alloc)
}

// check refuses what no state could admit.
func (s *Service) check(ctx context.Context, req *request) error {
	if err := volume.CheckID("volume id", req.Volume); err != nil {
		return err
	}
	if err := s.checkAlloc(req); err != nil {
		return err
	}
	if req.Access != "" || req.Attachment != "" {
		c := volume.Capability{Access: req.Access, Attachment: req.Attachment}
		if c.Access == "" {
			c.Access = volume.SingleNodeWriter
		}
		if c.Attachment == "" {
			c.Attachment = volume.FileSystem
		}
		if err := c.Check(); err != nil {
			return err
		}
	}
	if s.Halt != "" {
		return volume.Errorf(volume.ErrRefused, "cannot claim: %s", s.Halt)
	}
	if s.goesDown() {
		return errDown
	}
	if err := s.checkAt(req); err != nil {
		return err
	}
	if err := req.Own.Check(); err != nil {
		return err
	}
	return s.resolve(ctx, &req.Request)
}

// admit stores the claim, once nobody who is being released is in the way. It
// returns whether this request made it.
func (s *Service) admit(ctx, wait context.Context, req request) (made bool, err error) {
	for checked := false; ; {
		r, err := s.known(wait, req)
		if err != nil {
			return false, err
		}
		changed := s.Queue.Changed(req.Volume)
		err = s.Store.Change(ctx, req.Volume, func(r volume.Record) (volume.Record, bool, error) {
			full := req.Request
			full.Draining = s.Store.Draining()
			full.StagingPath = s.Paths.StagingPath(r.Volume.PluginID, r.Volume.ID)
			full.Target = s.Paths.TargetPath(r.Volume.PluginID, req.Alloc, r.Volume.ID, full.Private())
			next, err := volume.Admit(r, full, s.Plugins.View(r.Volume.PluginID).Info, time.Now().UTC())
			made = len(next.Claims) != len(r.Claims)
			return next, made, err
		})
		if errors.Is(err, volume.ErrRefused) && !checked && s.recheck(ctx, r) {
			checked = true // whoever is in the way may have ended a moment ago
			continue
		}
		if volume.Releasing(err) {
			s.reapAll(ctx, req.Volume)
		}
		if err == nil || !req.Waits || !volume.Releasing(err) {
			s.decided(req, made, err)
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

// mounted waits until the claim is taken, can never be, or time is up.
func (s *Service) mounted(ctx context.Context, req request, seq uint64) (volume.Record, volume.Claim, error) {
	woken, pending := false, false
	for {
		changed, r, c, err := s.next(req)
		pending = pending || err == nil && c.State == volume.Pending
		switch {
		case err != nil:
			return r, c, err
		case !c.Wanted || c.Seq != seq:
			return r, c, volume.Errorf(volume.ErrRefused, "the claim of %q on volume %q was released meanwhile", req.Alloc, req.Volume)
		case c.State == volume.Taken && (pending || s.Queue.InPlace(ctx, r, req.Alloc)):
			return r, c, nil // what became taken in this wait was looked at for that
		case c.State == volume.Taken && !woken:
			// Somebody unmounted it, or it died: no path is given out where
			// writes would go to the host's own disk.
			woken = true
			s.Queue.Wake(req.Volume)
		}
		at := s.Queue.Attempt(req.Volume, req.Alloc)
		if hopeless(at, req.Alloc) {
			return r, c, &volume.Awaited{Err: at.Err, At: *at}
		}
		plugin := s.Plugins.Changed(r.Volume.PluginID)
		if err := s.unserved(r); err != nil {
			return r, c, err
		}
		select {
		case <-changed:
		case <-plugin:
		case <-s.Down:
			return r, c, errDown
		case <-ctx.Done():
			at = s.Queue.Attempt(req.Volume, req.Alloc) // it may have gone on since
			return r, c, s.late(ctx, at, r)
		}
	}
}

// hopeless reports whether a step that the claim needs failed for good.
func hopeless(at *volume.Attempt, alloc string) bool {
	return final(at) && at.Action.Wanted() && (at.Action.Alloc == "" || at.Action.Alloc == alloc)
}

// final reports whether a step failed and is not tried again by itself. One that
// is, because of this request for instance, is not judged by its last failure.
func final(at *volume.Attempt) bool {
	return at != nil && at.Err != nil && at.Err.Final() && !at.Running && at.Next.IsZero()
}

// late says why the wait ended before the mount was there.
func (s *Service) late(ctx context.Context, at *volume.Attempt, r volume.Record) error {
	p := s.Plugins.View(r.Volume.PluginID)
	switch {
	case at != nil && at.Err != nil:
		return awaited(ctx, at, fmt.Errorf("%w (%s)", at.Err, tried(at)))
	case p.Apart != nil && lack(p, r, at) != "":
		return volume.Errorf(volume.ErrPluginUnavailable, "volume %q is not mounted: %s", r.Volume.ID, lack(p, r, at)).
			WithHint("%s", p.Remedy(r.Volume.PluginID))
	case p.Apart == nil && !p.Ready:
		return volume.Errorf(volume.ErrPluginUnavailable, "volume %q is not mounted: plugin %q is %s", r.Volume.ID, r.Volume.PluginID, p.State).
			WithHint("%s", p.Remedy(r.Volume.PluginID))
	case at != nil && at.Action.Reason != "":
		return ended(ctx, errors.New(at.Action.Reason))
	case at != nil:
		return ended(ctx, fmt.Errorf("volume %q is not mounted yet: %s has not answered", r.Volume.ID, at.Action.Kind))
	default:
		return ended(ctx, fmt.Errorf("volume %q is not mounted yet", r.Volume.ID))
	}
}

// awaited is ended, with how the step stands that was waited for.
func awaited(ctx context.Context, at *volume.Attempt, why error) error {
	err := ended(ctx, why)
	if !errors.Is(err, volume.ErrTimeout) {
		return err
	}
	return &volume.Awaited{Err: err, At: *at}
}

// tried says how often a step failed, and when it is tried again.
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

// ended tells a wait that ran out from one that was broken off.
func ended(ctx context.Context, why error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		hint := ""
		var e *volume.Error
		if errors.As(why, &e) {
			hint = e.Hint
		}
		return &volume.Error{Kind: volume.ErrTimeout, Message: "timed out: " + why.Error(), Hint: hint}
	}
	return ctx.Err()
}
