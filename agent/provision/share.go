package provision

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// sharer moves volumes between the scopes host and shared.
type sharer struct{ *common }

// Share makes a volume of this host a shared volume, also while it is mounted. Before that, all hosts
// of the cluster answer whether they use the storage on their own. With force, they are not asked.
func (s *sharer) Share(ctx context.Context, id string, force bool) (volume.Record, volume.Change, error) {
	if s.Cluster == nil {
		return failed(s.checkMember(volume.Volume{ID: id, Shared: true}))
	}
	r, ok, err := s.settleScope(ctx, id)
	if err != nil {
		return failed(err)
	}
	if !ok || r.Volume.Shared {
		return s.alreadyShared(ctx, id)
	}
	if err := s.checkShare(ctx, r); err != nil {
		return failed(err)
	}

	question := ""
	if !force {
		var err error
		if question, err = s.Cluster.Ask(ctx, r.Volume); err != nil {
			return failed(err)
		}
		defer s.Cluster.EndQuestion(ctx, r.Volume, question)
	}

	err = s.Queue.Exclusive(ctx, id, func() (err error) {
		r, err = s.share(ctx, r, question)
		return err
	})
	if err != nil {
		return failed(err)
	}

	s.emit(r, volume.EventShared, "shared with all hosts of the cluster")
	s.Queue.Wake(id)
	return r, volume.Change{Outcome: volume.SharedNow, Fields: []string{"scope: host → shared"}}, nil
}

// alreadyShared answers a request to share a volume that this host does not have in its own scope.
func (s *sharer) alreadyShared(ctx context.Context, id string) (volume.Record, volume.Change, error) {
	r, ok, err := s.sharedRecord(ctx, id)
	if err == nil && !ok {
		err = noVolume(id)
	}
	if err != nil {
		return failed(err)
	}
	return r, volume.Change{Outcome: volume.Unchanged}, nil
}

// checkShare refuses a volume that cannot be shared now.
func (s *sharer) checkShare(ctx context.Context, r volume.Record) error {
	v := r.Volume
	v.Shared = true
	if err := s.checkShareable(v); err != nil {
		return err
	}
	if _, err := s.Secrets(v); err != nil {
		return err
	}
	if err := settled(r); err != nil {
		return err
	}
	return s.read(ctx, func(tx Tx) error { return noLeftover(tx, v) })
}

// settled refuses a volume that is being changed, attached or taken down.
func settled(r volume.Record) error {
	v, n := r.Volume, r.Node
	var busy string
	switch {
	case v.Provision != volume.Provisioned:
		busy = string(v.Provision) + " has not finished"
	case v.Expansion.Want > 0 || v.Expansion.Node > 0:
		busy = "its expansion has not finished"
	case len(v.Modifying) > 0:
		busy = "an earlier modify has not finished"
	case len(n.PendingCalls) > 0 || len(n.Watches) > 0 || n.Attached == volume.Failed || n.Attached == volume.Unknown:
		busy = "the agent is still undoing or checking an earlier step"
	case r.Held() && n.Mode == nil:
		busy = "it is being taken down"
	default:
		return nil
	}
	return volume.Errorf(volume.ErrRefused, "cannot change the scope of volume %q: %s", v.ID, busy).WithRemedy(remedy.Of(remedy.ShowVolume, v.ID))
}

// share adds the volume to the cluster, and marks the record. If the agent stops in between, the
// record shows that the cluster knows the scope. The caller excludes all steps of the volume.
func (s *sharer) share(ctx context.Context, was volume.Record, question string) (volume.Record, error) {
	defer s.Cluster.Move(was.Volume.ID)()
	r, err := s.beginRescoping(ctx, was)
	if err != nil {
		return r, err
	}

	h, nodeID := ownHold(r)
	v := r.Volume
	v.Shared = true
	token, err := s.Cluster.Share(ctx, v, h, nodeID, question)
	ctx = context.WithoutCancel(ctx)
	if err != nil {
		return r, errors.Join(err, s.endRescoping(ctx, r, err))
	}

	err = s.Store.Update(ctx, func(tx Tx) (err error) {
		if r, err = sameRecord(tx, was); err != nil {
			return err
		}

		r.Volume.Shared, r.Rescoping = true, false
		switch {
		case h != nil:
			r.Node.Hold = *h
			r.Node.Hold.Token = token
		case len(r.Claims) > 0: // a claim was admitted meanwhile, and no step for it has run
			r.Node.Hold = volume.Hold{Operation: rand.Text(), Access: r.Node.Mode.Access}
		}
		tx.PutVolume(r)
		return nil
	})
	return r, err
}

// beginRescoping stores that the scope of a volume of this host is being changed.
func (s *sharer) beginRescoping(ctx context.Context, was volume.Record) (r volume.Record, err error) {
	err = s.Store.Update(ctx, func(tx Tx) (err error) {
		if r, err = sameRecord(tx, was); err != nil {
			return err
		}
		if r.Volume.Shared {
			return volume.OtherScope(r.Volume)
		}
		if err := settled(r); err != nil {
			return err
		}

		r.Rescoping = true
		tx.PutVolume(r)
		return nil
	})
	return r, err
}

// endRescoping stores that the scope of a volume has not changed, if the cluster has refused the
// change. If the outcome is unknown, the cluster shows it later.
func (s *sharer) endRescoping(ctx context.Context, was volume.Record, cause error) error {
	if !refused(cause) {
		return nil
	}
	return s.Store.Update(ctx, func(tx Tx) error {
		r, err := sameRecord(tx, was)
		if err != nil {
			return nil //nolint:nilerr // the volume was deregistered meanwhile
		}

		r.Rescoping = false
		tx.PutVolume(r)
		return nil
	})
}

// sameRecord returns the present record of a volume. It fails if the id belongs to another volume by
// now.
func sameRecord(tx Tx, was volume.Record) (volume.Record, error) {
	r, ok := tx.Volume(was.Volume.ID)
	if !ok || !r.Same(was) {
		return r, noVolume(was.Volume.ID)
	}
	return r, nil
}

// refused reports whether the cluster has certainly not executed a change.
func refused(err error) bool {
	return errors.Is(err, volume.ErrRefused) || errors.Is(err, volume.ErrNotFound)
}

// ownHold returns the hold that this host needs for the present use of a volume, and the CSI node id
// to which the volume is attached. It returns nil if the host does not use the volume.
func ownHold(r volume.Record) (h *volume.Hold, nodeID string) {
	n := r.Node
	if !r.Held() || n.Mode == nil {
		return nil, ""
	}
	if n.Attached == volume.Present {
		nodeID = n.NodeID
	}
	return &volume.Hold{
		State: volume.Present, Operation: rand.Text(), Access: n.Mode.Access, Since: time.Now().UTC(), Confirmed: nodeID != "",
	}, nodeID
}

// Unshare makes a shared volume a volume of this host. It refuses a volume that another host uses.
func (s *sharer) Unshare(ctx context.Context, id string) (volume.Record, volume.Change, error) {
	d, ok, err := s.shared(ctx, id)
	if err != nil {
		return failed(err)
	}
	if !ok {
		if r, known := s.Store.Volume(id); known && !r.Volume.Shared {
			return r, volume.Change{Outcome: volume.Unchanged}, nil
		}
		return failed(noVolume(id))
	}

	var r volume.Record
	err = s.Queue.Exclusive(ctx, id, func() (err error) {
		r, err = s.unshare(ctx, d)
		return err
	})
	if err != nil {
		return failed(err)
	}

	s.emit(r, volume.EventUnshared, "belongs to this host alone")
	s.Queue.Wake(id)
	return r, volume.Change{Outcome: volume.UnsharedNow, Fields: []string{"scope: shared → host"}}, nil
}

// unshare stores the volume as one of this host, and then removes it from the cluster. If the agent
// stops in between, the record shows that the cluster knows the scope. The caller excludes all steps
// of the volume.
func (s *sharer) unshare(ctx context.Context, d volume.SharedVolume) (r volume.Record, err error) {
	id, was := d.Volume.ID, volume.Record{}
	defer s.Cluster.Move(id)()
	err = s.Store.Update(ctx, func(tx Tx) error {
		had, ok := tx.Volume(id)
		if err := checkUnshare(had, ok, d); err != nil {
			return err
		}
		if err := unique(tx, d.Volume); err != nil {
			return err
		}
		if err := noLeftover(tx, d.Volume); err != nil {
			return err
		}

		was = had
		r = had.Redefined(d.Volume)
		r.Volume.Shared, r.Volume.Growth, r.Node.Hold, r.Rescoping = false, volume.Growth{}, volume.Hold{}, true
		r.Volume.Boot, r.Volume.Takeover = volume.BootWait, volume.TakeoverProven // they matter only to shared volumes
		tx.PutVolume(r)
		return nil
	})
	if err != nil {
		return r, err
	}

	err = s.Cluster.Unshare(ctx, d.Volume, was.Node.Hold.Operation)
	ctx = context.WithoutCancel(ctx)
	switch {
	case refused(err):
		return r, errors.Join(err, s.takeBack(ctx, was, id))
	case err != nil:
		return r, err // if the answer was lost, the cluster decides which scope the volume has
	}

	err = s.Store.Update(ctx, func(tx Tx) (err error) {
		if r, err = sameRecord(tx, r); err != nil {
			return err
		}
		r.Rescoping = false
		tx.PutVolume(r)
		return nil
	})
	return r, err
}

// checkUnshare refuses a volume that this host cannot have alone.
func checkUnshare(r volume.Record, known bool, d volume.SharedVolume) error {
	id := d.Volume.ID
	switch {
	case known && !r.Same(volume.Record{Volume: d.Volume}):
		return volume.Errorf(volume.ErrRefused, "this host is still taking down an earlier volume %q", id)
	case known && !r.Volume.Shared:
		return volume.OtherScope(r.Volume)
	case r.Node.Hold.Lost || r.Node.Hold.State == volume.Failed || r.Node.Hold.State == volume.Unknown:
		return volume.Errorf(volume.ErrRefused, "it is unknown whether this host still holds volume %q", id).WithRemedy(remedy.Of(remedy.ShowVolume, id))
	case len(r.Claims) > 0 && r.Node.Hold.State != volume.Present:
		return volume.Errorf(volume.ErrRefused, "a claim on this host still waits for its hold on volume %q", id).WithRemedy(remedy.Of(remedy.ShowVolume, id))
	case r.Node.Hold.Reader:
		return volume.Errorf(volume.ErrRefused, "this host holds volume %q as a reader; a reader cannot take it", id).WithRemedy(remedy.Of(remedy.ShowVolume, id))
	}

	r.Volume = d.Volume
	return settled(r)
}

// takeBack restores the record of a volume that stays shared.
func (s *sharer) takeBack(ctx context.Context, was volume.Record, id string) error {
	return s.Store.Update(ctx, func(tx Tx) error {
		r, ok := tx.Volume(id)
		switch {
		case !ok:
		case was.Volume.ID == "" && !r.Held():
			tx.DeleteVolume(id)
		default:
			r.Volume.Shared, r.Volume.Growth, r.Node.Hold, r.Rescoping = true, was.Volume.Growth, was.Node.Hold, false
			r.Volume.Boot, r.Volume.Takeover = was.Volume.Boot, was.Volume.Takeover
			tx.PutVolume(r)
		}
		return nil
	})
}

// SharedRecord returns a shared volume as a record, also for a host that does not use the volume. The
// result ok is false for a volume that the cluster does not have.
func (s *sharer) SharedRecord(ctx context.Context, id string) (r volume.Record, ok bool, err error) {
	return s.sharedRecord(ctx, id)
}

// usesWithin limits the time in which Uses looks into the store.
const usesWithin = 3 * time.Second

// Uses returns the id under which this host uses a storage volume on its own, or is about to use it.
// It returns an empty text if the host does not use the storage.
func (s *sharer) Uses(driver, external string) (id string) {
	if id := s.beginning.find(driver, external); id != "" {
		return id
	}

	ctx, cancel := context.WithTimeout(context.Background(), usesWithin)
	defer cancel()

	_ = s.read(ctx, func(tx Tx) error { // only the end of the agent makes a read fail
		found, ok := tx.VolumeOf(driver, external)
		if r, known := tx.Volume(found); ok && known && !r.Volume.Shared {
			id = found
		}
		return nil
	})
	return id
}
