package claim

import (
	"context"
	"errors"
	"fmt"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// Store reads and changes the stored volume records.
type Store interface {
	Volume(id string) (volume.Record, bool)
	// Change runs fn on the record of a volume and waits until the result is on disk. It returns
	// ErrNotFound if no volume has this id. The second result of fn reports whether fn changed the
	// record. Change does not write an unchanged record.
	Change(ctx context.Context, id string, fn func(volume.Record) (volume.Record, bool, error)) error
	// Detach does the same as Change, but for the end of a claim. If the data dir is read-only,
	// Detach keeps the result in memory and returns no error.
	Detach(ctx context.Context, id string, fn func(volume.Record) (volume.Record, bool, error)) error
	// Draining reports whether an operator is draining this host. Inside the function that Change
	// runs, the answer stays correct until that function returns.
	Draining() bool
}

// Queue mounts and unmounts each volume until the volume matches its claims.
type Queue interface {
	Wake(id string)
	// Advance wakes the queue like Wake, for a claim that was just made or detached.
	Advance(id string)
	Changed(id string) <-chan struct{}
	// Attempt returns the step for which a claim is waiting.
	Attempt(id, alloc string) *volume.Attempt
	// Abandon stops waiting for the running call of a volume.
	Abandon(id string)
	// Yield interrupts the running step of a volume if the agent can safely leave the step
	// unfinished. The service calls Yield after it has detached a claim.
	Yield(id string)
	// InPlace reports whether the mounts of a claim are still the mounts that the agent made for
	// that claim.
	InPlace(ctx context.Context, r volume.Record, alloc string) bool
}

// Plugins reports the state of plugins.
type Plugins interface {
	View(pluginID string) plugin.View
	// Changed returns a channel that is closed when the state of the plugin changes.
	Changed(pluginID string) <-chan struct{}
}

// Paths returns the paths at which the agent mounts volumes on this host.
type Paths interface {
	StagingPath(pluginID, id string) string
	TargetPath(pluginID, alloc, id string, private bool) string
}

// Owners finds the owners of claims, watches them, and reports when an owner has ended.
type Owners interface {
	volume.Owners
	// Resolve completes the owner that a caller named, or refuses it.
	Resolve(ctx context.Context, o volume.Owner) (volume.Owner, error)
	// Watch starts to watch an owner, so that Gone reports its end.
	Watch(o volume.Owner)
	// Check determines the current state of the owners. The service calls it before it refuses a
	// request because an owner seems to be alive.
	Check(ctx context.Context, owners []volume.Owner)
}

// Service admits and detaches claims.
type Service struct {
	Store   Store
	Queue   Queue
	Plugins Plugins
	Paths   Paths

	// Places may be nil if no caller lends a descriptor and the agent guards no directory.
	Places Places

	// Owners may be nil if no claim has an owner.
	Owners Owners

	// Private lists the agent's own directories. A claim cannot use one of these directories, or a
	// directory inside or above one, as its own directory.
	Private []string

	// Halt is the reason why the agent refuses every claim. It is empty in normal operation.
	Halt string

	// Down is closed when this host begins to shut down. The service then refuses all new claims
	// and ends all waits. Nil means that the host never shuts down.
	Down <-chan struct{}

	// Coming waits for a volume that is about to be registered. If the registration fails, Coming
	// returns the reason. It returns nil for any other volume. The field Coming may be nil.
	Coming func(ctx context.Context, id string) error

	// Fetch makes sure that this host has a record of a shared volume. It does nothing for other
	// volumes. It returns ErrPluginUnavailable while the cluster is not reachable. The field Fetch
	// is nil if no cluster is configured.
	Fetch func(ctx context.Context, id string) error

	// Leaving returns the host to which a person moves a volume from this host. It returns an empty text
	// for any other volume. The field Leaving is nil if no cluster is configured.
	Leaving func(id string) string

	// Events receives an event for each decision about a request. If Events is nil, the service
	// discards the events.
	Events EventSink

	waits waits
}

// request is one call of Claim.
type request struct {
	volume.Request
	Volume string
	Waits  bool
}

// Places lends file descriptors of own directories and decides which own directories the agent may
// guard.
type Places interface {
	// Lend keeps the caller's file descriptor of an own directory until the service calls giveBack.
	Lend(id, alloc, at string, d volume.Descriptor) (giveBack func(), err error)
	// Guardable returns the own directory of a claim if the agent may guard that directory.
	// Otherwise it returns nil. A guarded directory refuses writes while no volume is mounted on
	// it.
	Guardable(ctx context.Context, id, alloc, at string) *volume.GuardedDir
}

// endClaim stores that the claim must be unmounted, and wakes the queue. It reports whether the
// record changed. It does nothing if the alloc has a newer claim, which has a different sequence
// number (seq).
func (s *Service) endClaim(ctx context.Context, id, alloc string, seq uint64, how volume.Without) (released bool, err error) {
	return s.endClaimIf(ctx, id, alloc, how, func(now volume.Claim) bool { return now.Seq == seq })
}

// endClaimIf does the same as endClaim, but only if the function meant returns true for the claim
// that is stored now.
func (s *Service) endClaimIf(ctx context.Context, id, alloc string, how volume.Without, meant func(now volume.Claim) bool) (released bool, err error) {
	var was, now volume.ClaimState
	err = s.Store.Detach(ctx, id, func(r volume.Record) (volume.Record, bool, error) {
		released = false
		if c, ok := r.Claims[alloc]; ok && !meant(c) {
			return r, false, nil
		}

		next, err := volume.DetachWithout(r, alloc, how)
		released = next.Claims[alloc] != r.Claims[alloc]
		was, now = r.Claims[alloc].State, next.Claims[alloc].State
		return next, released, err
	})
	if err != nil {
		return false, err
	}

	if released {
		s.Events.emit(id, alloc, volume.ClaimEvent(now), fmt.Sprintf("%s → %s", was, now))
	}
	s.Queue.Advance(id)
	if released {
		s.Queue.Yield(id)
	}

	return released, nil
}

// EventSink receives events. A nil EventSink discards them.
type EventSink func(...volume.Event)

// emitDecision emits an event if the agent refused or admitted a claim.
func (emit EventSink) emitDecision(req request, made bool, err error) {
	switch {
	case errors.Is(err, volume.ErrRefused):
		emit.emit(req.Volume, req.Alloc, volume.EventClaimRefused, err.Error())
	case err == nil && made:
		how := "admitted for writing"
		if req.ReadOnly {
			how = "admitted for reading"
		}
		emit.emit(req.Volume, req.Alloc, volume.EventClaimPending, how)
	}
}

func (emit EventSink) emit(id, alloc string, typ volume.EventType, message string) {
	if emit != nil {
		emit(volume.Event{Type: typ, Volume: id, Alloc: alloc, Message: message})
	}
}
