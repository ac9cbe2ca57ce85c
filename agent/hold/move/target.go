package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// asTarget answers a move, and ends its reservation. The admission of a claim ends it too.
func (w *worker) asTarget(ctx context.Context, m shared.Moving) error {
	switch m.Move.Value.State {
	case shared.MoveAsked:
		return w.answer(ctx, m)
	case shared.MoveAccepted:
		return w.keep(ctx, m)
	default:
		return nil // the mover ends the move
	}
}

// answer accepts or declines a move.
func (w *worker) answer(ctx context.Context, m shared.Moving) error {
	def := m.Volume.Value.Volume
	def.Shared = true
	claimed, refused := w.Accepts(ctx, def)
	reason, fix := words(refused)

	_, err := w.decide(ctx, w.volume, w.from, w.to, func(who shared.Asker, m shared.Moving) (shared.Txn, error) {
		if refused != nil {
			return m.Decline(who, w.id, reason, fix)
		}
		return m.Accept(who, w.id, claimed, w.Lease())
	})
	if err != nil || refused != nil {
		return err
	}

	w.accepted = time.Now()
	w.Events(volume.Event{
		Type: volume.EventVolumeReserved, Volume: w.volume, Message: fmt.Sprintf("reserved for this host; host %q gives the volume up", w.from),
	})
	return nil
}

// words returns the reason and the remedy of a refusal.
func words(err error) (string, remedy.Remedy) {
	if err == nil {
		return "", remedy.Remedy{}
	}
	var refused *volume.Error
	if errors.As(err, &refused) {
		return refused.Message, refused.Remedy.Or(remedy.Advice(refused.Hint))
	}
	return err.Error(), remedy.Remedy{}
}

// keep ends the reservation if the source cannot give the volume up, if it does not do so in time, or if
// no claim comes.
func (w *worker) keep(ctx context.Context, m shared.Moving) error {
	now := time.Now()
	if w.accepted.IsZero() {
		w.accepted = now // an earlier agent of this host has accepted
		def := m.Volume.Value.Volume
		def.Shared = true
		if _, err := w.Accepts(ctx, def); err != nil {
			w.Log.Warn("cannot reserve a place for a volume that is moved to this host; its claim may be refused", "volume", w.volume, "error", err)
		}
	}
	if w.released.IsZero() && m.Released() {
		w.released = now
	}

	var why string
	switch {
	case w.Draining():
		why = "this host is draining"
	case !w.released.IsZero() && now.Sub(w.released) > w.Reserve:
		why = fmt.Sprintf("no claim came within %s", w.Reserve)
	case w.released.IsZero() && m.Stuck(now) != "":
		why = m.Stuck(now)
	case w.released.IsZero() && now.Sub(w.accepted) > m.Move.Value.Within+w.Answer:
		why = fmt.Sprintf("host %q has not given the volume up in time", w.from) // the mover is gone
	default:
		return nil
	}

	_, err := w.decide(ctx, w.volume, w.from, w.to, func(who shared.Asker, m shared.Moving) (shared.Txn, error) {
		return m.End(who, w.id)
	})
	if err == nil {
		w.Events(volume.Event{Type: volume.EventReservationEnded, Volume: w.volume, Message: "the reservation for this host has ended: " + why})
	}
	return err
}
