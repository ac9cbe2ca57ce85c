package provision

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// merge applies a volume file to a registered volume.
func (s *Service) merge(ctx context.Context, r volume.Record, spec volume.Volume, dry bool) (volume.Record, volume.Change, error) {
	if r.Volume.Provision == volume.Deleting {
		return failed(deleting(spec.ID))
	}

	spec.Secrets = s.Seal.Same(spec.ID, spec.Secrets, r.Volume.Secrets)
	now, fields, err := volume.Merge(r, spec)
	if err != nil {
		return failed(err)
	}

	wanted := r.Volume.Mutations(spec.Mutable)
	if len(wanted) > 0 {
		if err := s.canModify(ctx, r.Volume); err != nil {
			return failed(err)
		}
		fields = append(fields, r.Volume.MutableChange(wanted))
	}

	if len(fields) == 0 {
		if !dry && len(spec.Secrets) > 0 {
			s.wake(r.Volume) // the secret values may have changed behind the same references
		}
		return r, volume.Change{Outcome: volume.Unchanged}, nil
	}

	if !maps.Equal(now.Secrets, r.Volume.Secrets) {
		if _, err := s.Secrets(now); err != nil {
			return failed(err)
		}
	}

	if err := s.offered(ctx, r.Volume, now); err != nil {
		return failed(err)
	}

	kept, size := r.Volume.Grown(now)
	info, err := s.expander(ctx, r.Volume.PluginID, size, dry)
	if err != nil {
		return failed(err)
	}
	if dry {
		r, _, err = s.grow(r, now, info)
		r.Volume = now
		return r, volume.Change{Outcome: volume.Updated, Fields: fields}, err
	}

	if len(wanted) > 0 {
		// Modify first, because the plugin may refuse the modify. Use the secrets of the file.
		if r, err = s.modify(ctx, kept, wanted); err != nil {
			return failed(err)
		}
	}

	if spec.Secrets, err = s.Seal.Seal(spec.ID, spec.Secrets, r.Volume.Secrets); err != nil {
		return failed(err)
	}

	return s.lay(ctx, spec, fields, info)
}

// offered asks the plugin whether it supports the capabilities and mount options that the file
// changes. It accepts the change if the plugin is down. It also accepts the change if another call
// for the volume takes too long.
func (s *Service) offered(ctx context.Context, was, now volume.Volume) error {
	sameModes := slices.Equal(was.Capabilities, now.Capabilities)
	sameOptions := reflect.DeepEqual(was.MountOptions, now.MountOptions)
	if sameModes && sameOptions || s.Halt != "" {
		return nil
	}

	wait, cancel := context.WithTimeout(ctx, aloneWithin)
	defer cancel()

	var asked error
	err := s.Queue.Exclusive(wait, now.ID, func() error {
		asked = s.exists(ctx, now)
		return nil
	})
	if err != nil {
		return ctx.Err() // nil if only the wait timed out
	}

	return asked
}

// lay stores the changes of a volume file in the record of the volume. If the size changes, lay
// waits for the expansion.
func (s *Service) lay(ctx context.Context, spec volume.Volume, fields []string, info plugin.Info) (r volume.Record, ch volume.Change, err error) {
	changed, size := false, int64(0)
	err = s.Store.Update(ctx, func(tx Tx) (err error) {
		old, ok := tx.Volume(spec.ID)
		if !ok {
			return volume.Errorf(volume.ErrNotFound, "volume %q was deregistered meanwhile", spec.ID)
		}

		r = old
		now, laid, err := volume.Merge(old, spec)
		if changed = len(laid) > 0; err != nil || !changed {
			return err
		}
		if r, size, err = s.grow(old, now, info); err != nil {
			return err
		}

		tx.PutVolume(r)
		if maps.Equal(old.Volume.Secrets, r.Volume.Secrets) {
			return nil
		}

		return s.lend(tx, r.Volume)
	})
	if err != nil {
		return failed(err)
	}

	if changed {
		s.say(r, "updated", "%s", strings.Join(fields, "; "))
		s.wake(r.Volume)
	}

	if size > 0 {
		r, err = s.expanded(ctx, spec.ID, size, mergeWait)
	}

	return r, volume.Change{Outcome: volume.Updated, Fields: fields}, err
}

// grow applies a merged volume to a record. If the file asks for a larger size, grow starts an
// expansion. The record gets the new size when the plugin confirms it.
func (s *Service) grow(r volume.Record, merged volume.Volume, info plugin.Info) (volume.Record, int64, error) {
	merged, size := r.Volume.Grown(merged)
	r.Volume = merged
	if size == 0 {
		return r, 0, nil
	}

	r, _, err := volume.Expand(r, size, info, s.Owners)
	return r, size, err
}
