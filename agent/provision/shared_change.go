package provision

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// define registers a shared volume in the cluster. This host gets no record of the volume before a
// claim needs it.
func (s *registrar) define(ctx context.Context, v volume.Volume) (volume.Record, volume.Change, error) {
	if err := s.checkShareable(v); err != nil {
		return failed(err)
	}
	if err := s.read(ctx, func(tx Tx) error { return unique(tx, v) }); err != nil {
		return failed(err)
	}

	err := s.Cluster.Define(ctx, v)
	if errors.Is(err, volume.ErrRefused) {
		// Another host may have registered the same file meanwhile.
		if had, ok, lookErr := s.Cluster.Look(ctx, v.ID); ok && lookErr == nil {
			return s.mergeShared(ctx, had, v, false)
		}
	}
	if err != nil {
		return failed(err)
	}

	r := volume.Record{Volume: v}
	s.emit(r, volume.EventRegistered, "registered as %q of %s for all hosts", v.ExternalID, v.Driver)
	return r, volume.Change{Outcome: volume.Registered}, nil
}

// mergeShared applies a volume file to the definition of a shared volume.
func (s *registrar) mergeShared(ctx context.Context, had volume.SharedVolume, spec volume.Volume, dry bool) (volume.Record, volume.Change, error) {
	switch had.Volume.Provision {
	case volume.Deleting:
		return failed(unfinishedDelete(spec.ID))
	case volume.Provisioning:
		return failed(volume.Errorf(volume.ErrRefused, "the create of volume %q has not finished", spec.ID).WithHint("repeat the create: volctl volume create FILE"))
	}
	if err := s.checkReferences(spec); err != nil {
		return failed(err)
	}

	now, fields, err := had.Merge(spec)
	if err != nil {
		return failed(err)
	}
	wanted := had.Volume.Mutations(spec.Mutable)
	if len(wanted) > 0 {
		if err := s.modifier.checkModify(ctx, had.Volume); err != nil {
			return failed(err)
		}
		fields = append(fields, had.Volume.MutableChange(wanted))
	}
	if len(fields) == 0 {
		return s.record(had), volume.Change{Outcome: volume.Unchanged}, nil
	}

	if err := s.checkSecrets(now); err != nil {
		return failed(err)
	}
	if err := s.checkOffered(ctx, had.Volume, now); err != nil {
		return failed(err)
	}
	if dry {
		return volume.Record{Volume: now}, volume.Change{Outcome: volume.Updated, Fields: fields}, nil
	}
	return s.storeShared(ctx, had, spec, wanted, fields)
}

// storeShared stores the changes of a volume file in the cluster. It first modifies and expands the
// storage, because the plugin may refuse that.
func (s *registrar) storeShared(ctx context.Context, had volume.SharedVolume, spec volume.Volume, wanted map[string]string, fields []string) (volume.Record, volume.Change, error) {
	if len(wanted) > 0 {
		if _, _, err := s.modifier.modifyShared(ctx, had, wanted); err != nil {
			return failed(err)
		}
	}

	size := int64(0)
	now, err := s.Cluster.Redefine(ctx, spec.ID, func(v volume.SharedVolume) (volume.Volume, bool, error) {
		merged, changes, err := v.Merge(spec)
		merged, size = v.Volume.Grown(merged)
		return merged, len(changes) > 0, err
	})
	if err != nil {
		return failed(err)
	}

	s.emit(volume.Record{Volume: now.Volume}, volume.EventUpdated, "%s", strings.Join(fields, "; "))
	if size > 0 {
		if _, _, err := s.expander.expandShared(ctx, now, size, mergeWait); err != nil {
			return failed(err)
		}
		if now, _, err = s.Cluster.Look(ctx, spec.ID); err != nil {
			return failed(err)
		}
	}
	return s.record(now), volume.Change{Outcome: volume.Updated, Fields: fields}, nil
}

// modifyShared changes the mutable parameters of a shared volume.
func (s *modifier) modifyShared(ctx context.Context, had volume.SharedVolume, asked map[string]string) (volume.Record, volume.Change, error) {
	wanted := had.Volume.Mutations(asked)
	if len(wanted) == 0 {
		return s.record(had), volume.Change{Outcome: volume.Unchanged}, nil
	}
	if err := s.checkModify(ctx, had.Volume); err != nil {
		return failed(err)
	}
	if _, err := s.awaitController(ctx, had.Volume); err != nil {
		return failed(err)
	}

	id, fields := had.Volume.ID, []string{had.Volume.MutableChange(wanted)}
	var now volume.SharedVolume
	err := s.Queue.Change(ctx, id, func() error {
		return repeatLost(ctx, func() (err error) {
			now, err = s.callModify(ctx, had.Volume, wanted)
			return err
		})
	})
	if err != nil {
		s.emit(volume.Record{Volume: had.Volume}, volume.EventModifyFailed, "%v", err)
		return failed(err)
	}

	s.emit(volume.Record{Volume: now.Volume}, volume.EventModified, "%s", fields[0])
	return s.record(now), volume.Change{Outcome: volume.Modified, Fields: fields}, nil
}

// callModify announces and makes the call that modifies a volume.
func (s *modifier) callModify(ctx context.Context, v volume.Volume, wanted map[string]string) (now volume.SharedVolume, err error) {
	id, c := v.ID, s.storageCall(v, call.ControllerModify)
	p, secrets, err := s.modifyCaller(v)
	if err != nil {
		return now, err
	}

	before := map[string]string{}
	begun, err := s.Cluster.BeginCall(ctx, c, func(v volume.SharedVolume, ok bool) (volume.Volume, error) {
		before = maps.Clone(v.Volume.Modifying)
		return v.Volume.Mutating(wanted), existing(v, ok, id)
	})
	if err != nil {
		return now, err
	}

	err = call.Run(ctx, p, call.ModifyRequest{ExternalID: begun.Volume.ExternalID, Mutable: wanted, Secrets: secrets})
	if uncertain(err) {
		s.Cluster.LeaveCall(c)
		return now, withCall(call.ControllerModify, err, &volume.Error{
			Kind: kindOf(err), Message: fmt.Sprintf("%v; it is unknown whether volume %q was modified", err, id),
			Hint: "repeat the modify: " + suggest.Words(volume.Modify(id, pairs(wanted)...)),
		})
	}

	now, ended := s.Cluster.EndCall(context.WithoutCancel(ctx), c, "", func(v volume.Volume) volume.Volume {
		if err == nil {
			return v.Mutated(wanted)
		}
		v.Modifying = before
		return v
	})
	return now, errors.Join(refusal(v.PluginID, err), ended)
}

// existing refuses a volume that the cluster does not have, or that is being created or deleted.
func existing(v volume.SharedVolume, ok bool, id string) error {
	switch {
	case !ok:
		return noVolume(id)
	case v.Volume.Provision != volume.Provisioned:
		return volume.Errorf(volume.ErrRefused, "volume %q: %s has not finished", id, v.Volume.Provision)
	default:
		return nil
	}
}

// expandShared makes a shared volume larger. One host calls the controller, and each host that holds
// the volume then calls its node service. With a wait, expandShared also waits until this host has
// done so, if it holds the volume. If the controller does not expand the volume, the definition
// keeps the size, and the next expand continues.
func (s *expander) expandShared(ctx context.Context, had volume.SharedVolume, size int64, wait time.Duration) (volume.Record, volume.Change, error) {
	id, was := had.Volume.ID, had.Volume
	info, err := s.awaitController(ctx, was)
	if err != nil {
		return failed(err)
	}

	var want bool
	intend := func(v volume.SharedVolume) (volume.Volume, bool, error) {
		if g := v.Volume.Growth; !info.Caps.Expand && g.Size == size && g.Done < g.Generation {
			return v.Volume, false, nil // the nodes are expanding it already
		}
		r, _, err := volume.Expand(volume.Record{Volume: v.Volume}, size, info, s.Owners)
		now, changed := v.Volume.Enlarging(r.Volume)
		want = now.Expansion.Want > 0
		return now, changed, err
	}

	now, changed, err := intend(had)
	if err != nil || !changed && !want {
		return s.record(had), volume.Change{Outcome: volume.Unchanged}, err
	}
	if !want {
		had, err = s.Cluster.Redefine(ctx, id, intend)
	} else {
		s.emit(volume.Record{Volume: now}, volume.EventExpandBegun, "expanding to %s", volume.Size(size))
		err = repeatLost(ctx, func() (err error) {
			had, err = s.callExpand(ctx, now, size, intend)
			return err
		})
	}
	if err != nil {
		return failed(err)
	}

	return s.expandedShared(ctx, had, was, size, wait)
}

// errNothing ends the announcement of a call that is no longer necessary.
var errNothing = errors.New("nothing to do")

// callExpand announces and makes the call of the controller.
func (s *expander) callExpand(ctx context.Context, v volume.Volume, size int64, intend func(volume.SharedVolume) (volume.Volume, bool, error)) (now volume.SharedVolume, err error) {
	c := s.storageCall(v, call.ControllerExpand)
	c.Alone = v.Expansion.Offline
	err = s.Queue.Change(ctx, v.ID, func() error {
		p, secrets, err := s.provisioner(v)
		if err != nil {
			return err
		}

		var before volume.Expansion
		begun, err := s.Cluster.BeginCall(ctx, c, func(had volume.SharedVolume, ok bool) (volume.Volume, error) {
			if err := existing(had, ok, v.ID); err != nil {
				return had.Volume, err
			}
			before = had.Volume.Expansion
			out, _, err := intend(had)
			if err == nil && out.Expansion.Want == 0 {
				now, err = had, errNothing
			}
			return out, err
		})
		switch {
		case errors.Is(err, errNothing):
			return nil // another host has expanded the volume meanwhile
		case err != nil:
			return err
		}

		req := call.ExpandRequest{
			ExternalID: v.ExternalID, CapacityMin: begun.Volume.Expansion.Want, CapacityMax: v.CapacityMax,
			Capability: v.Capabilities[0], FSType: v.MountOptions.FSType, MountFlags: v.MountOptions.MountFlags, Secrets: secrets,
		}
		if i := slices.IndexFunc(v.Capabilities, func(c call.Capability) bool { return c.Access == begun.Access }); i >= 0 {
			req.Capability = v.Capabilities[i]
		}

		got, err := call.Do(ctx, p, req)
		if uncertain(err) {
			s.Cluster.LeaveCall(c)
			return withCall(call.ControllerExpand, err, &volume.Error{
				Kind: kindOf(err), Message: fmt.Sprintf("%v; it is unknown whether volume %q was expanded", err, v.ID),
				Hint: "repeat the command: " + suggest.Command("volctl volume expand %s %s", v.ID, volume.Size(size)),
			})
		}

		var ended error
		now, ended = s.Cluster.EndCall(context.WithoutCancel(ctx), c, "", func(v volume.Volume) volume.Volume {
			if err == nil {
				return v.Enlarged(req.CapacityMin, got)
			}
			v.Expansion = volume.Expansion{}
			if unsent(err) {
				v.Expansion = before // an earlier call may have had an effect
			}
			return v
		})
		return errors.Join(refusal(v.PluginID, err), ended)
	})
	return now, err
}

// expandedShared waits until this host has expanded the contents of a volume, if it holds the volume,
// and returns the result of the expansion.
func (s *expander) expandedShared(ctx context.Context, v volume.SharedVolume, was volume.Volume, size int64, wait time.Duration) (volume.Record, volume.Change, error) {
	id := v.Volume.ID
	if r, ok := s.Store.Volume(id); ok && r.Held() && r.Volume.Expansion.Node > 0 && wait > 0 {
		s.Queue.Wake(id)
		if _, err := s.awaitExpanded(ctx, id, size, wait); err != nil {
			return failed(err)
		}
		now, ok, err := s.Cluster.Look(ctx, id)
		if err != nil || !ok {
			return failed(errors.Join(err, noVolume(id)))
		}
		v = now
	}

	if v.Volume.Capacity < size {
		return s.record(v), volume.Change{Outcome: volume.Growing}, nil
	}
	field := volume.FieldChange("capacity", volume.Size(was.Capacity), volume.Size(v.Volume.Capacity))
	return s.record(v), volume.Change{Outcome: volume.Grown, Fields: []string{field}}, nil
}

// withdrawShared cancels the expansion of a shared volume that the controller has not made.
func (s *expander) withdrawShared(ctx context.Context, id string) (volume.Record, volume.Change, error) {
	ch := volume.Change{Outcome: volume.Unchanged}
	now, err := s.Cluster.Redefine(ctx, id, func(v volume.SharedVolume) (volume.Volume, bool, error) {
		r, withdrawn := volume.WithdrawExpansion(volume.Record{Volume: v.Volume})
		if withdrawn {
			ch = volume.Change{Outcome: volume.GivenUp, Fields: []string{"expansion: " + volume.Size(v.Volume.Expansion.Want) + " → none"}}
		}
		return r.Volume, withdrawn, nil
	})
	if err != nil {
		return failed(err)
	}
	if ch.Outcome == volume.GivenUp {
		s.emit(volume.Record{Volume: now.Volume}, volume.EventExpandWithdrawn, "%s", ch.Fields[0])
	}
	return s.record(now), ch, nil
}
