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

// Deregister makes the agent forget a volume and keeps its data. Without force, it refuses a volume
// that still has something on this host. With force, it drops claims that are already being
// detached, calls no plugin and unmounts nothing. It returns a description of each leftover. It
// also stores the leftovers in a leftover record, which the queue undoes when the plugin is ready.
func (s *Service) Deregister(ctx context.Context, id string, force bool) (left []string, err error) {
	return s.deregister(ctx, id, force, false)
}

// Forget does the same as Deregister with force. It also deletes all leftover records of the
// volume, so the agent never undoes these leftovers.
func (s *Service) Forget(ctx context.Context, id string) (left []string, err error) {
	return s.deregister(ctx, id, true, true)
}

func (s *Service) deregister(ctx context.Context, id string, force, forget bool) (left []string, err error) {
	var gone volume.Record
	var wake []string
	unguarded := s.unguard(id, func(r volume.Record) error { return mayDrop(r, force) })

	err = s.Store.Update(ctx, func(tx Tx) (err error) {
		gone, left, wake = volume.Record{Volume: volume.Volume{ID: id}}, nil, nil
		r, ok := tx.Volume(id)
		if ok {
			r = volume.Past(r, s.Owners)
			gone = r
			left, err = drop(tx, r, force, forget)
		}

		if err != nil || !forget {
			return unless(ok, err, tx, id)
		}

		for _, d := range leftovers(tx, id) {
			gone, ok = d, true
			left = append(left, Behind(d)...)
			tx.DeleteLeftover(d.Volume.Driver, d.Volume.ExternalID)
			wake = append(wake, volume.LeftoverKey(d.Volume.Driver, d.Volume.ExternalID))
			if waits, ok := tx.VolumeOf(d.Volume.Driver, d.Volume.ExternalID); ok {
				wake = append(wake, waits)
			}
		}

		return unless(ok, nil, tx, id)
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
	s.say(gone, "deregistered", "%s", msg)
	return left, nil
}

// drop deletes the record of a volume. Unless forget is set, it stores the leftovers in a leftover
// record. An existing leftover record of the same storage already contains all leftovers, because
// the agent has made nothing since then. drop leaves such a record unchanged.
func drop(tx Tx, r volume.Record, force, forget bool) (left []string, err error) {
	id := r.Volume.ID
	if err := mayDrop(r, force); err != nil {
		return nil, err
	}

	debt := volume.LeftoverOf(r) // a call may still be running, and its effect is also a leftover
	left = Behind(debt)
	if want := r.Volume.Expansion.Want; want > 0 {
		left = append(left, fmt.Sprintf("plugin %q may have expanded external_id %q to %s, or may still do so", r.Volume.PluginID, r.Volume.ExternalID, volume.Size(want)))
	}
	tx.DeleteVolume(id)
	if _, ok := tx.Leftover(r.Volume.Driver, r.Volume.ExternalID); r.Held() && r.Volume.ExternalID != "" && !ok && !forget {
		tx.PutLeftover(debt, time.Now().UTC())
	}

	return left, nil
}

// mayDrop refuses to forget a volume that is in use. With force, it refuses only a volume that has
// a live claim.
func mayDrop(r volume.Record, force bool) error {
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

// Stats asks the plugin for the usage of a mounted volume.
func (s *Service) Stats(ctx context.Context, id string) (volume.Report, error) {
	r, ok := s.Store.Volume(id)
	if !ok {
		return volume.Report{}, unknown(id)
	}
	if err := measurable(r); err != nil {
		return volume.Report{}, err
	}

	info, err := s.ready(ctx, r.Volume.PluginID)
	if err != nil {
		return volume.Report{}, err
	}
	if !info.Caps.Stats {
		return volume.Report{}, volume.Errorf(volume.ErrRefused, "plugin %q does not report the usage of volumes", r.Volume.PluginID)
	}

	p, err := s.Plugins.Reporter(r.Volume.PluginID)
	if err != nil {
		return volume.Report{}, err
	}

	// Any user may ask for the stats, so this call must not block other work on the volume for
	// long.
	ctx, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()

	var now volume.Report
	err = s.Queue.Exclusive(ctx, id, func() error {
		// Read the record again: the volume may have been unmounted while this call waited.
		if r, ok = s.Store.Volume(id); !ok {
			return unknown(id)
		}
		if err := measurable(r); err != nil {
			return err
		}

		return s.askStats(ctx, p, r, info.Caps, &now)
	})
	if err != nil {
		return now, err
	}

	return s.keep(r, now), nil
}

// measurable refuses a volume that is not mounted, because only the node service can measure it.
func measurable(r volume.Record) error {
	if _, _, mounted := whereMounted(r); mounted {
		return nil
	}
	return volume.Errorf(volume.ErrRefused, "volume %q is not mounted, so its usage cannot be measured", r.Volume.ID).
		WithHint("%s", suggest.Command("volctl volume claim %s", r.Volume.ID))
}
