package move

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// Move moves a volume from the host that holds it to another host. It waits until the source has given
// up its hold, for at most the duration within. If the source does not do so, or if ctx ends, Move ends
// the move, and the source keeps the volume.
func (s *Service) Move(ctx context.Context, id, to string, within time.Duration) (shared.Moved, error) {
	o := order{Service: s, volume: id, id: rand.Text(), to: to, within: within, begun: time.Now()}
	revision, err := o.begin(ctx)
	if err != nil {
		return shared.Moved{}, s.explain(id, err)
	}

	watching, stop := context.WithCancel(ctx)
	defer stop()
	changed := o.awake(watching, revision+1)
	for {
		m, err := s.read(ctx, id, o.from, to)
		if err == nil {
			done, oerr := o.judge(m)
			if done {
				return o.result(m), nil
			}
			if oerr != nil {
				return o.cancel(ctx, oerr)
			}
		}

		select {
		case <-ctx.Done():
			return o.cancel(ctx, context.Cause(ctx))
		case <-changed:
		case <-time.After(s.Every):
		}
		if err != nil && time.Since(o.begun) > within+s.Answer {
			return o.cancel(ctx, err)
		}
	}
}

// order is one move as its mover sees it.
type order struct {
	*Service
	volume, id, from, to string
	within               time.Duration

	begun, accepted, released time.Time // zero before
}

// begin asks the target. It returns a revision before the order.
func (o *order) begin(ctx context.Context) (revision int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, decideWithin)
	defer cancel()

	for range mostTries {
		m, err := o.read(ctx, o.volume, o.from, o.to)
		if err != nil {
			return 0, err
		}
		if m.Holder() != o.from {
			o.from = m.Holder()
			continue
		}

		m, err = o.decide(ctx, o.volume, o.from, o.to, func(who shared.Asker, m shared.Moving) (shared.Txn, error) {
			if m.Released() {
				return shared.Txn{}, errMoved
			}
			return m.Begin(who, shared.Move{ID: o.id, Within: o.within, Since: time.Now().UTC()}, o.Lease())
		})
		if !errors.Is(err, errMoved) {
			return m.Revision, err
		}
	}
	return 0, errBusy
}

// errMoved means that another host holds the volume since the last read.
var errMoved = errors.New("another host holds the volume")

// awake returns a channel that receives a value after each change of the move or of the holder.
func (o *order) awake(ctx context.Context, from int64) <-chan struct{} {
	changed := make(chan struct{}, 1)
	spans := []shared.Span{{Key: shared.MoveKey(o.volume)}, {Key: shared.UseKey(o.volume)}}
	go func() {
		for range o.Store.Watch(ctx, spans, from) {
			select {
			case changed <- struct{}{}:
			default: // the last value has not been received yet
			}
		}
	}()
	return changed
}

// takenWithin is how long the mover waits for the hold of a claim that waits on the target.
const takenWithin = 3 * time.Second

// judge reports whether the volume has moved. It returns an error if the move must end, or has ended.
func (o *order) judge(m shared.Moving) (done bool, err error) {
	now := time.Now()
	running, had := m.Running(o.id), m.Move.Value
	if o.accepted.IsZero() && running && had.State == shared.MoveAccepted {
		o.accepted = now
	}
	if o.released.IsZero() && m.Released() {
		o.released = now
	}

	switch holder := m.Holder(); {
	case holder == o.to:
		return true, nil
	case m.Released() && holder != "":
		return false, volume.Errorf(volume.ErrRefused, "host %q has taken the volume in the meantime", holder).WithRemedy(remedy.Of(remedy.ShowVolume, o.volume))
	case running && had.State == shared.MoveDeclined:
		return false, volume.Errorf(volume.ErrRefused, "host %q refuses it: %s", o.to, had.Reason).WithRemedy(had.Remedy)
	case m.Released() && !running:
		return true, nil // the reservation has ended already
	case m.Released() && had.State == shared.MoveAccepted:
		return !had.Claimed || now.Sub(o.released) > takenWithin, nil
	case m.Stuck(now) != "":
		return false, volume.Errorf(volume.ErrRefused, "%s", m.Stuck(now)).WithRemedy(remedy.Of(remedy.ReturnOrReplace, o.from))
	case !running:
		return false, volume.Errorf(volume.ErrRefused, "%s; host %q keeps the volume", m.Ended(now), o.from).WithHint("volctl node list")
	case o.accepted.IsZero() && now.Sub(o.begun) > o.Answer:
		return false, volume.Errorf(volume.ErrRefused, "host %q has not answered within %s; is its agent older than this one?", o.to, o.Answer).WithHint("volctl node list")
	case !o.accepted.IsZero() && now.Sub(o.accepted) > o.within:
		return false, had.Late(o.volume)
	default:
		return false, nil
	}
}

// result returns the result of a move that has succeeded.
func (o *order) result(m shared.Moving) shared.Moved {
	out := shared.Moved{From: o.from, To: o.to, Taken: m.Holder() == o.to}
	if m.Reserved(o.id) {
		out.Reserved = o.Reserve
	}
	return out
}

// cancel ends the move, unless the source has given the volume up for the target. It returns the error,
// or the result of a move that has succeeded meanwhile.
func (o *order) cancel(ctx context.Context, why error) (shared.Moved, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), decideWithin)
	defer cancel()

	m, err := o.decide(ctx, o.volume, o.from, o.to, func(who shared.Asker, m shared.Moving) (shared.Txn, error) {
		if m.Reserved(o.id) {
			return shared.Txn{}, nil
		}
		return m.End(who, o.id)
	})
	if err != nil {
		o.Log.Warn("cannot end the move of a volume; it ends with the lease of this host or of the target", "volume", o.volume, "to", o.to, "error", err)
	}
	if err == nil && m.Reserved(o.id) {
		return o.result(m), nil
	}
	return shared.Moved{}, o.explain(o.volume, why)
}

// explain returns the error of a move for people.
func (s *Service) explain(id string, err error) error {
	var refused *volume.Error
	if errors.As(err, &refused) || errors.Is(err, context.Canceled) {
		return err
	}
	return volume.Errorf(volume.ErrPluginUnavailable, "cannot move volume %q: %v", id, err).WithRemedy(remedy.Of(remedy.ShowNode))
}
