package hold

import (
	"context"
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// Definitions reads and changes the definitions of shared volumes, for package provision.
type Definitions struct {
	*ownHolds
}

// ClusterID returns the id of the cluster. It is empty before the first registration.
func (d Definitions) ClusterID() string { return d.Records.Membership().ClusterID }

// Look returns a shared volume. The result ok is false if the cluster has no such volume.
func (d Definitions) Look(ctx context.Context, id string) (v volume.SharedVolume, ok bool, err error) {
	p, err := d.readPlace(ctx, volume.Volume{ID: id})
	if err != nil {
		return v, false, d.cannotLook(id, err)
	}
	return p.Shown(), p.Volume.Exists(), nil
}

// Define adds a volume to the cluster.
func (d Definitions) Define(ctx context.Context, v volume.Volume) error {
	_, err := d.change(ctx, v, func(who shared.Asker, p shared.Place) (shared.Txn, error) {
		if p.Volume.Exists() && p.Volume.Value.Volume.RegisteredAt.Equal(v.RegisteredAt) {
			return shared.Txn{}, nil // an earlier transaction with a lost answer has done it
		}
		return p.Define(who, v)
	})
	return err
}

// Undefine removes a volume from the cluster. It refuses a volume that a host uses, and a volume that
// was defined again, created or deleted since the given definition was read. It also ends the call of
// this host with the given operation.
func (d Definitions) Undefine(ctx context.Context, was volume.SharedVolume, operation string) error {
	sent := false
	_, err := d.change(ctx, was.Volume, func(who shared.Asker, p shared.Place) (shared.Txn, error) {
		now := p.Shown()
		same := now.Volume.RegisteredAt.Equal(was.Volume.RegisteredAt) && now.Operation == was.Operation
		switch {
		case sent && !p.Volume.Exists():
			return shared.Txn{}, nil // an earlier transaction with a lost answer has done it
		case p.Volume.Exists() && !same:
			return shared.Txn{}, volume.Errorf(volume.ErrRefused, "volume %q was registered again meanwhile", was.Volume.ID)
		case p.Volume.Exists() && now.Volume.Provision != was.Volume.Provision:
			return shared.Txn{}, volume.Errorf(volume.ErrRefused, "a create or delete of volume %q has begun or ended meanwhile", was.Volume.ID)
		}

		sent = true
		return p.Undefine(who, operation)
	})
	if err != nil {
		return err
	}
	return d.Records.ForgetIdle(ctx, was.Volume.ID)
}

// Redefine changes the definition of a volume. It calls fn with the present definition, also several
// times if other hosts change the volume. If fn returns false, nothing changes.
func (d Definitions) Redefine(ctx context.Context, id string, fn func(volume.SharedVolume) (volume.Volume, bool, error)) (volume.SharedVolume, error) {
	return d.change(ctx, volume.Volume{ID: id}, func(who shared.Asker, p shared.Place) (shared.Txn, error) {
		if !p.Volume.Exists() {
			return p.Redefine(who, shared.Definition{})
		}

		def := p.Volume.Value
		v, changed, err := fn(p.Shown())
		if err != nil || !changed {
			return shared.Txn{}, err
		}
		def.Volume = v
		return p.Redefine(who, def)
	})
}

// BeginCall announces a controller call, and stores the definition with the intent of the call. The
// function fn returns the definition. For a volume that the cluster does not have, its argument is
// empty.
func (d Definitions) BeginCall(ctx context.Context, c volume.StorageCall, fn func(had volume.SharedVolume, ok bool) (volume.Volume, error)) (volume.SharedVolume, error) {
	begin := shared.StorageCall{Alone: c.Alone}
	v, err := d.change(ctx, volume.Volume{ID: c.Volume}, func(who shared.Asker, p shared.Place) (shared.Txn, error) {
		v, err := fn(p.Shown(), p.Volume.Exists())
		if err != nil {
			return shared.Txn{}, err
		}

		def := p.Volume.Value
		if !p.Volume.Exists() {
			def.Operation = c.Operation
		}
		def.Volume = v
		begin.AnnouncedCall = shared.AnnouncedCall{Asker: who, Operation: c.ID, Call: c.Call, Deadline: c.Deadline, Now: time.Now().UTC()}
		return p.BeginStorageCall(begin, def)
	})
	if errors.Is(err, volume.ErrPluginUnavailable) {
		d.LeaveCall(c) // the cluster may have announced the call
	}
	return v, err
}

// EndCall stores the result of an announced call, and ends the call. The function fn returns the
// definition after the call.
func (d Definitions) EndCall(ctx context.Context, c volume.StorageCall, external string, fn func(volume.Volume) volume.Volume) (volume.SharedVolume, error) {
	var sent *volume.Record
	v, err := d.change(ctx, volume.Volume{ID: c.Volume, Driver: c.Driver, ExternalID: external}, func(who shared.Asker, p shared.Place) (shared.Txn, error) {
		def, now := p.Volume.Value, p.Shown().Volume
		if sent != nil && !p.Call.Exists() && p.Volume.Exists() && sent.SameDefinition(volume.Record{Volume: now}) {
			return shared.Txn{}, nil // an earlier transaction with a lost answer has done it
		}

		def.Volume = fn(now)
		sent = &volume.Record{Volume: def.Volume}
		return p.EndStorageCall(who, c.ID, def)
	})
	if errors.Is(err, volume.ErrPluginUnavailable) {
		d.LeaveCall(c)
	}
	return v, err
}

// LeaveCall ends an announced call of unknown outcome after the time in which the call may still have
// an effect. The definition keeps the intent. While the cluster is not reachable, LeaveCall tries
// again.
func (d Definitions) LeaveCall(c volume.StorageCall) {
	d.mu.Lock()
	ctx := d.running
	d.mu.Unlock()

	go func() {
		for wait, tries := c.Deadline, 1; ctx.Err() == nil; tries++ {
			backoff.Pause(ctx, wait)
			_, err := d.change(ctx, volume.Volume{ID: c.Volume}, func(who shared.Asker, p shared.Place) (shared.Txn, error) {
				return p.LeaveStorageCall(who, c.ID)
			})
			if err == nil || ctx.Err() != nil {
				return
			}
			if !errors.Is(err, volume.ErrPluginUnavailable) {
				d.Log.Warn("cannot end an announced call in the cluster; this host ends it when its agent starts again",
					"volume", c.Volume, "call", c.Call, "error", err)
				return
			}
			wait = backoff.Jitter(retries.After(tries))
		}
	}()
}
