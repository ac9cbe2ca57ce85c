// Package claim admits and detaches claims. A request is validated, decided, stored, handed to the
// queue, and awaited. The domain (volmgr/volume) makes the decisions. The queue (agent/reconcile)
// carries them out.
package claim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// Store holds the records.
type Store interface {
	Volume(id string) (volume.Record, bool)
	// Change runs fn on a volume's record and waits until the result is on disk. It returns
	// ErrNotFound if there is no such volume. The second result of fn reports whether fn changed
	// the record; an unchanged record is not written.
	Change(ctx context.Context, id string, fn func(volume.Record) (volume.Record, bool, error)) error
	// Detach is Change for the end of a claim. If the data dir is read-only, Detach keeps the
	// result in memory and returns no error.
	Detach(ctx context.Context, id string, fn func(volume.Record) (volume.Record, bool, error)) error
	// Draining reports whether the host is being drained. The answer is exact when it is called
	// within fn.
	Draining() bool
}

// Queue makes each volume match its claims.
type Queue interface {
	Wake(id string)
	// Advance is Wake for a claim that was just made or detached.
	Advance(id string)
	Changed(id string) <-chan struct{}
	// Attempt returns the step that a claim is waiting for.
	Attempt(id, alloc string) *volume.Attempt
	// Abandon gives up the call that is running for a volume.
	Abandon(id string)
	// Yield interrupts the step that is running for a volume, if that step may stay half done. It
	// is called when a claim was detached.
	Yield(id string)
	// InPlace checks that a claim's mounts are still the ones that the agent made for it.
	InPlace(ctx context.Context, r volume.Record, alloc string) bool
}

// Plugins reports the state of plugins.
type Plugins interface {
	View(pluginID string) volume.PluginView
	// Changed returns a channel that is closed at the next change of a plugin's state.
	Changed(pluginID string) <-chan struct{}
}

// Paths tells where volumes are mounted on this host.
type Paths interface {
	StagingPath(pluginID, id string) string
	TargetPath(pluginID, alloc, id string, private bool) string
}

// Owners tells which owners of claims are alive.
type Owners interface {
	volume.Owners
	// Resolve fills in the owner that a caller named, or refuses it.
	Resolve(ctx context.Context, o volume.Owner) (volume.Owner, error)
	// Watch observes an owner, so that Gone knows when it ends.
	Watch(o volume.Owner)
	// Check looks at owners again, before a request is refused because of them.
	Check(ctx context.Context, owners []volume.Owner)
}

// Service admits and detaches claims.
type Service struct {
	Store   Store
	Queue   Queue
	Plugins Plugins
	Paths   Paths

	// Places may be nil where no caller lends a descriptor and no directory is guarded.
	Places Places

	// Owners may be nil where no claim has an owner.
	Owners Owners

	// Private lists directories of the agent. No claim may be bound inside, at, or above one.
	Private []string

	// Halt says why every claim is refused; empty in normal operation.
	Halt string

	// Down is closed when this host begins to shut down. From then on no claim is admitted, and all
	// waits end. Nil means that the host never shuts down.
	Down <-chan struct{}

	// Coming waits for a volume that is about to be registered. It returns the reason if the
	// registration fails, and nil if it does not know the volume. May be nil.
	Coming func(ctx context.Context, id string) error

	// Events receives the events of requests; nil discards them.
	Events func(...volume.Event)

	mu      sync.Mutex
	waiting map[waitKey]*waiters
}

// waitKey identifies one claim. A later claim of the same alloc on the same volume has another seq.
type waitKey struct {
	volume, alloc string
	seq           uint64
}

// waiters counts the calls that wait for one claim to be mounted. If one of these calls made the
// claim and all of them give up, the claim is detached again.
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

// Claim admits a claim and, if wait is above 0, waits until it is mounted. The wait includes claims
// that are in the way and are being detached. If this call made the claim and the claim is not
// mounted in time, Claim detaches it again. It does not do so when the agent is stopping, because
// the next agent continues with the claim.
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
	if c.State != volume.Mounted {
		s.Queue.Advance(req.Volume) // a new request justifies another try
	}
	if !req.Waits {
		return r, c, nil
	}

	key := waitKey{req.Volume, req.Alloc, c.Seq}
	s.join(key, made)
	r, c, err = s.mounted(waiting, req, c.Seq)
	if err == nil && s.Owners != nil {
		s.Owners.Watch(c.Keeper()) // the keeper may have changed since
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

// leave removes a call from the count. It reports whether the claim must be detached again: the
// wait of this call failed, no other call waits for the claim, and one of the calls made it.
func (s *Service) leave(key waitKey, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	w := s.waiting[key]
	if w.n--; w.n == 0 {
		delete(s.waiting, key)
	}
	if err == nil {
		w.made = false // a caller has received the claim, so it stays
	}

	return err != nil && w.made && w.n == 0
}

// checkAlloc refuses an alloc's id that cannot be stored. An alloc that already has a claim on the
// volume may keep an id that is no longer accepted for new claims.
func (s *Service) checkAlloc(req *request) error {
	if r, ok := s.Store.Volume(req.Volume); ok {
		if _, has := r.Claims[req.Alloc]; has {
			return volume.CheckID("alloc id", req.Alloc)
		}
	}

	return volume.CheckNewID("alloc id", req.Alloc)
}

// check refuses requests that are invalid in every state of the volume.
func (s *Service) check(ctx context.Context, req *request) error {
	if err := volume.CheckID("volume id", req.Volume); err != nil {
		return err
	}
	if err := s.checkAlloc(req); err != nil {
		return err
	}

	if req.Mode != (call.Capability{}) {
		c := req.Mode
		if c.Access == "" {
			c.Access = call.SingleNodeWriter
		}
		if c.Attachment == "" {
			c.Attachment = call.FileSystem
		}
		if err := volume.CheckCapability(c); err != nil {
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

// admit stores the claim, after it has waited for claims in the way that are being detached. It
// reports whether this request made the claim.
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
			checked = true // the owner of a claim in the way may have ended a moment ago
			continue
		}

		if volume.IsDetaching(err) {
			s.reapAll(ctx, req.Volume)
		}
		if err == nil || !req.Waits || !volume.IsDetaching(err) {
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

// mounted waits until the claim is mounted, can no longer be mounted, or the time is up.
func (s *Service) mounted(ctx context.Context, req request, seq uint64) (volume.Record, volume.Claim, error) {
	woken, pending := false, false
	for {
		changed, r, c, err := s.next(req)
		pending = pending || err == nil && c.State == volume.Pending
		switch {
		case err != nil:
			return r, c, err
		case !c.Wanted || c.Seq != seq:
			return r, c, volume.Errorf(volume.ErrRefused, "the claim of %q on volume %q was detached meanwhile", req.Alloc, req.Volume)
		case c.State == volume.Mounted && (pending || s.Queue.InPlace(ctx, r, req.Alloc)):
			return r, c, nil // a claim that became mounted during this wait was checked then
		case c.State == volume.Mounted && !woken:
			// The volume was unmounted by another process, or its mount died. Do not return the
			// path: writes there would go to the host's own disk.
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
			at = s.Queue.Attempt(req.Volume, req.Alloc) // the step may have advanced since
			return r, c, s.late(ctx, at, r)
		}
	}
}

// hopeless reports whether a step that the claim needs has failed and will not be tried again.
func hopeless(at *volume.Attempt, alloc string) bool {
	return final(at) && at.Action.Wanted() && (at.Action.Alloc == "" || at.Action.Alloc == alloc)
}

// final reports whether a step failed and is not retried by itself. A step that is running or due,
// for instance because of this request, is not judged by its last failure.
func final(at *volume.Attempt) bool {
	return at != nil && at.Err != nil && at.Err.Final() && !at.Running && at.Next.IsZero()
}

// late explains why the wait ended before the volume was mounted.
func (s *Service) late(ctx context.Context, at *volume.Attempt, r volume.Record) error {
	p := s.Plugins.View(r.Volume.PluginID)
	switch {
	case at != nil && at.Err != nil:
		return awaited(ctx, at, fmt.Errorf("%w (%s)", at.Err, tried(at)))
	case p.Apart != nil && lack(p, r, at) != "":
		return volume.Errorf(volume.ErrPluginUnavailable, "volume %q is not mounted: %s", r.Volume.ID, lack(p, r, at)).
			WithRemedy(p.Remedy(r.Volume.PluginID))
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

// awaited is ended, and adds the state of the step that the caller waited for.
func awaited(ctx context.Context, at *volume.Attempt, why error) error {
	err := ended(ctx, why)
	if !errors.Is(err, volume.ErrTimeout) {
		return err
	}
	return &volume.Awaited{Err: err, At: *at}
}

// tried says how many times a step was tried, and when the next try is due.
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

// ended returns an ErrTimeout if the wait reached its deadline, and the context's error if the wait
// was interrupted.
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
