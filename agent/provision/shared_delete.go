package provision

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// deleteShared destroys the data of a shared volume. No host gets a hold on the volume after the
// delete has begun. Any host can repeat a delete that did not finish.
func (s *remover) deleteShared(ctx context.Context, v volume.SharedVolume, confirm string) error {
	id, r := v.Volume.ID, volume.Record{Volume: v.Volume}
	if !v.Volume.Created && confirm != id {
		return volume.Errorf(volume.ErrRefused, "no host of the cluster created volume %q; to destroy its data, repeat the id", id).
			WithHint("%s", suggest.Command("volctl volume delete %s -y --confirm=%s", id, id))
	}
	if v.Volume.Provision == volume.Provisioning {
		return volume.Errorf(volume.ErrRefused, "the create of volume %q has not finished, so its external id is unknown", id).
			WithHint("repeat the create first, or discard it: %s", suggest.Command("volctl volume deregister %s --force", id))
	}

	info, err := s.awaitController(ctx, v.Volume)
	if err != nil {
		return err
	}
	if !info.Caps.CreateDelete {
		return volume.Errorf(volume.ErrRefused, "plugin %q cannot delete volumes", v.Volume.PluginID).
			WithHint("%s", suggest.Command("volctl volume deregister %s", id))
	}
	if err := s.checkReferences(v.Volume); err != nil && !s.remote(v.Volume) {
		return err
	}
	if err := s.read(ctx, func(tx Tx) error { return noLeftover(tx, v.Volume) }); err != nil {
		return err
	}

	err = s.Queue.Call(ctx, id, call.DeleteVolume, func() error {
		return repeatLost(ctx, func() error {
			err := s.callDeleteShared(ctx, v)
			v.Volume.Provision = volume.Deleting // a repeated call resumes this one
			return err
		})
	})
	if err != nil {
		s.emit(r, volume.EventDeleteFailed, "%v", err)
		return err
	}

	s.Queue.Forget(id)
	s.reports.forget(id)
	s.emit(r, volume.EventDeleted, "deleted %q for all hosts", v.Volume.ExternalID)
	return nil
}

// noLeftover refuses to delete storage of which a forced deregister has left something on this host.
func noLeftover(tx Tx, v volume.Volume) error {
	leftover, ok := tx.Leftover(v.Driver, v.ExternalID)
	if !ok || v.ExternalID == "" {
		return nil
	}

	left := strings.Join(DescribeLeftovers(leftover), "; ")
	if left == "" {
		left = "the agent waits for a possible late effect of a call"
	}
	return volume.Errorf(volume.ErrRefused, "cannot delete volume %q: leftovers of the forced deregister of %q still exist: %s",
		v.ID, leftover.Volume.ID, left).WithHint("volctl node status")
}

// callDeleteShared announces and makes the call, and removes the definition.
func (s *remover) callDeleteShared(ctx context.Context, v volume.SharedVolume) error {
	id, c := v.Volume.ID, s.storageCall(v.Volume, call.DeleteVolume)
	c.Alone = true
	p, secrets, err := s.provisioner(v.Volume)
	if err != nil {
		return err
	}

	// The definition keeps the intent while an earlier delete, also one of another host, may have had an
	// effect.
	resumed := v.Volume.Provision == volume.Deleting
	begun, err := s.Cluster.BeginCall(ctx, c, func(had volume.SharedVolume, ok bool) (volume.Volume, error) {
		if !ok || had.Operation != v.Operation || had.Volume.ExternalID != v.Volume.ExternalID {
			return had.Volume, noVolume(id)
		}
		resumed = resumed || had.Volume.Provision == volume.Deleting
		had.Volume.Provision = volume.Deleting
		return had.Volume, nil
	})
	if err != nil {
		return err
	}

	err = call.Run(ctx, p, call.DeleteVolumeRequest{ExternalID: begun.Volume.ExternalID, Secrets: secrets})
	ctx = context.WithoutCancel(ctx)
	switch {
	case err == nil:
		err = s.Cluster.Undefine(ctx, begun, c.ID)
		if errors.Is(err, volume.ErrPluginUnavailable) {
			s.Cluster.LeaveCall(c)
		}
		return err
	case uncertain(err):
		s.Cluster.LeaveCall(c)
	case resumed:
		_, ended := s.Cluster.EndCall(ctx, c, "", same)
		return errors.Join(unclearDelete(id, err), ended)
	default:
		_, ended := s.Cluster.EndCall(ctx, c, "", func(v volume.Volume) volume.Volume {
			v.Provision = volume.Provisioned
			return v
		})
		return errors.Join(refusal(v.Volume.PluginID, err), ended)
	}

	return unclearDelete(id, err)
}

// unclearDelete returns the error for a delete of unknown outcome.
func unclearDelete(id string, cause error) error {
	return withCall(call.DeleteVolume, cause, &volume.Error{
		Kind:    kindOf(cause),
		Message: fmt.Sprintf("%v; it is unknown whether the data of volume %q still exists", cause, id),
		Hint:    "repeat the delete on any host: " + suggest.Command("volctl volume delete %s -y", id),
	})
}

// deregisterShared removes a shared volume from the cluster and keeps its data. It refuses a volume
// that a host holds.
//
// With force, it also discards the intent of an unfinished create or delete, for which no call is in
// flight.
func (s *remover) deregisterShared(ctx context.Context, v volume.SharedVolume, force bool) (left []string, err error) {
	id := v.Volume.ID
	if r, known := s.Store.Volume(id); known && !force {
		if err := volume.Unused(r); err != nil {
			return nil, err // it names the claims, which only this host knows
		}
	}
	if err := v.Unused(); err != nil {
		return nil, err
	}
	if !force && v.Volume.Provision != volume.Provisioned {
		return nil, checkDroppable(volume.Record{Volume: v.Volume}, false)
	}
	if err := s.Cluster.Undefine(ctx, v, ""); err != nil {
		return nil, err
	}

	left = DescribeLeftovers(volume.Record{Volume: v.Volume})
	s.Queue.Forget(id)
	s.reports.forget(id)
	msg := "deregistered for all hosts"
	if len(left) > 0 {
		msg += "; " + strings.Join(left, "; ")
	}
	s.emit(volume.Record{Volume: v.Volume}, volume.EventDeregistered, "%s", msg)
	return left, nil
}

// forgetHere makes only this host forget a shared volume that it holds. The leftover record keeps the
// hold until the leftovers are undone. The definition stays for the other hosts. The caller can
// deregister the volume after that.
func (s *remover) forgetHere(ctx context.Context, r volume.Record, forget bool) (left []string, err error) {
	id := r.Volume.ID
	if forget && !r.Node.Hold.Lost {
		return nil, holdsLeftover(id)
	}

	if left, err = s.deregisterHere(ctx, id, true, forget); err != nil {
		return nil, err
	}
	return append(left, fmt.Sprintf("the definition of shared volume %q stays in the cluster; this host gives up its hold when the leftovers are undone", id)), nil
}
