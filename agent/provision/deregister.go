package provision

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// Deregister makes the agent forget a volume and keeps the data of the volume. Without force, it
// refuses a volume that is still mounted, attached or claimed. With force, it drops claims that are
// already being detached, calls no plugin and unmounts nothing. It returns a description of each
// leftover. It also stores a leftover record. When the plugin is ready, the queue undoes the
// leftovers in that record.
func (s *remover) Deregister(ctx context.Context, id string, force bool) (left []string, err error) {
	return s.deregister(ctx, id, force, false)
}

// Forget does the same as Deregister with force. It also deletes all leftover records of the
// volume, so the agent never undoes these leftovers.
func (s *remover) Forget(ctx context.Context, id string) (left []string, err error) {
	return s.deregister(ctx, id, true, true)
}

func (s *remover) deregister(ctx context.Context, id string, force, forget bool) (left []string, err error) {
	if forget {
		known, err := s.leftoversOf(ctx, id)
		if err != nil {
			return nil, err
		}
		if known {
			return s.deregisterHere(ctx, id, force, forget)
		}
	}

	// The host can forget a volume that it holds without an answer of the cluster.
	if r, ok := s.Store.Volume(id); force && ok && r.Held() && (r.Volume.Shared || r.Rescoping) {
		return s.forgetHere(ctx, r, forget)
	}

	v, shared, err := s.shared(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case shared:
		return s.deregisterShared(ctx, v, force)
	default:
		return s.deregisterHere(ctx, id, force, forget)
	}
}

// leftoversOf reports whether a volume has leftover records on this host.
func (s *remover) leftoversOf(ctx context.Context, id string) (found bool, err error) {
	err = s.read(ctx, func(tx Tx) error {
		for _, d := range leftovers(tx, id) {
			found = true
			if d.Volume.Shared && d.Node.Hold.State != volume.Absent && !d.Node.Hold.Lost {
				return holdsLeftover(id)
			}
		}
		return nil
	})
	return found, err
}

// holdsLeftover returns the error for leftovers of a shared volume that this host must not discard.
func holdsLeftover(id string) error {
	return volume.Errorf(volume.ErrRefused, "this host holds shared volume %q, and cannot discard its leftovers without a proof that nothing writes to it", id).
		WithHint("volctl node status shows the leftovers; the agent undoes them when the plugin is ready")
}

// deregisterHere makes this host forget a volume.
func (s *remover) deregisterHere(ctx context.Context, id string, force, forget bool) (left []string, err error) {
	var gone volume.Record
	var wake []string
	unguarded := s.unguard(id, func(r volume.Record) error { return checkDroppable(r, force) })

	err = s.Store.Update(ctx, func(tx Tx) (err error) {
		gone, left, wake = volume.Record{Volume: volume.Volume{ID: id}}, nil, nil
		r, ok := tx.Volume(id)
		if ok {
			r = volume.Past(r, s.Owners)
			gone = r
			left, err = dropRecord(tx, r, force, forget)
		}

		if err != nil || !forget {
			return missingError(ok, err, tx, id)
		}

		for _, d := range leftovers(tx, id) {
			gone, ok = d, true
			left = append(left, DescribeLeftovers(d)...)
			tx.DeleteLeftover(d.Volume.Driver, d.Volume.ExternalID)
			wake = append(wake, volume.LeftoverKey(d.Volume.Driver, d.Volume.ExternalID))
			if waits, ok := tx.VolumeOf(d.Volume.Driver, d.Volume.ExternalID); ok {
				wake = append(wake, waits)
			}
		}

		return missingError(ok, nil, tx, id)
	})
	if err != nil {
		return nil, err
	}

	left = append(left, unguarded...)
	left = append(left, s.unguardLast(gone)...)
	s.Queue.Forget(id)
	s.reports.forget(id)
	s.Queue.Wake(volume.LeftoverKey(gone.Volume.Driver, gone.Volume.ExternalID))
	for _, key := range wake {
		s.Queue.Wake(key)
	}
	msg := "deregistered"
	switch {
	case forget:
		msg = "deregistered by force, leftovers discarded"
	case force:
		msg += " by force"
	}

	if len(left) > 0 {
		msg += "; " + strings.Join(left, "; ")
	}
	s.emit(gone, volume.EventDeregistered, "%s", msg)
	return left, nil
}

// dropRecord deletes the record of a volume. Unless forget is set, it stores the leftovers in a
// leftover record. It does not change an existing leftover record of the same storage. Such a
// record already contains all leftovers, because the agent has mounted nothing since then.
func dropRecord(tx Tx, r volume.Record, force, forget bool) (left []string, err error) {
	id := r.Volume.ID
	if err := checkDroppable(r, force); err != nil {
		return nil, err
	}

	// The effect of a call that is still running is also a leftover.
	leftover := volume.LeftoverOf(r)
	left = DescribeLeftovers(leftover)
	if want := r.Volume.Expansion.Want; want > 0 {
		left = append(left, fmt.Sprintf("plugin %q may have expanded external_id %q to %s, or may still do so", r.Volume.PluginID, r.Volume.ExternalID, volume.Size(want)))
	}
	tx.DeleteVolume(id)
	if _, ok := tx.Leftover(r.Volume.Driver, r.Volume.ExternalID); r.Held() && r.Volume.ExternalID != "" && !ok && !forget {
		tx.PutLeftover(leftover, time.Now().UTC())
	}

	return left, nil
}

// checkDroppable refuses to forget a volume that is in use. With force, it refuses only a volume
// that has a live claim.
func checkDroppable(r volume.Record, force bool) error {
	if force {
		return volume.Droppable(r)
	}
	if err := volume.Unused(r); err != nil {
		return err
	}
	if r.Volume.Provision != volume.Provisioned {
		return volume.Errorf(volume.ErrRefused, "volume %q: %s has not finished", r.Volume.ID, r.Volume.Provision).
			WithRemedy(remedy.Of(remedy.ForceDeregister, r.Volume.ID))
	}

	return nil
}

// missingError returns an error if no volume with the id is known. The error mentions the leftover
// records of the id. If err is not nil, missingError returns err.
func missingError(known bool, err error, tx Tx, id string) error {
	if known || err != nil {
		return err
	}

	for _, d := range leftovers(tx, id) {
		return volume.Errorf(volume.ErrNotFound, "volume %q was already deregistered by force; plugin %q must still undo its leftovers: %s",
			id, d.Volume.PluginID, strings.Join(DescribeLeftovers(d), "; ")).WithHint("to see the leftovers: volctl node status; to discard them: %s", suggest.Command("volctl volume deregister %s --force --forget", id))
	}

	return noVolume(id)
}
