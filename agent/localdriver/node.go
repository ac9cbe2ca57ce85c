package localdriver

import (
	"context"
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/agent/localdriver/store"
	"github.com/volagent/volagent/agent/localdriver/usage"
)

// NodeGetCapabilities reports the abilities of the node service.
func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	resp := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
	} {
		resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}

	return resp, nil
}

// NodeGetInfo returns the node id with which the driver was started. The topology contains this id,
// too.
func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.opts.NodeID, AccessibleTopology: d.topology()}, nil
}

// target is a volume together with one of its paths, locked for one call.
type target struct {
	d    *driver
	v    store.Volume
	path string
	// the loop devices of an image volume, as they were at the start of the call
	loops []loopdev.LoopDevice
}

// open finds and locks the volume of a node call, and checks the path.
func (d *driver) open(id, what, path string) (*target, func(), error) {
	return d.openWith(d.locks.Lock, id, what, path)
}

// openToRelease does the same as open, for a call that only removes mounts. Such a call is also
// allowed while the volume's data is being copied.
func (d *driver) openToRelease(id, what, path string) (*target, func(), error) {
	return d.openWith(d.locks.LockToRelease, id, what, path)
}

func (d *driver) openWith(lock func(id string) (func(), error), id, what, path string) (*target, func(), error) {
	if id == "" {
		return nil, nil, csierr.Invalidf("the volume id is empty")
	}

	path, err := usage.CheckPath(d.store, what, path)
	if err != nil {
		return nil, nil, err
	}
	if _, err := d.volume(id); err != nil {
		return nil, nil, err
	}

	unlock, err := lock(id)
	if err != nil {
		return nil, nil, err
	}

	t := &target{d: d, path: path}
	// Read the volume again, because another call may have deleted it before this call got the
	// lock.
	if t.v, err = d.volume(id); err == nil {
		err = t.readLoops()
	}
	if err != nil {
		unlock()
		return nil, nil, err
	}

	d.seen.learnDevices(id, t.loops)
	return t, unlock, nil
}

// readLoops finds the loop devices of the volume. It first tries the devices that the volume had at
// the previous call. If none of them still belongs to the volume, readLoops searches all devices.
func (t *target) readLoops() error {
	if t.v.Type != store.TypeImage {
		return nil
	}

	for _, name := range t.d.seen.devices(t.v.ID) {
		// Ignore the error, because the device may have been removed. The search below then finds
		// the right device.
		if l, err := loopdev.LoopOf(name, t.data()); err == nil && l != nil {
			t.loops = append(t.loops, *l)
		}
	}

	if len(t.loops) == 0 {
		var err error
		if t.loops, err = loopdev.LoopsOf(t.v.ID, t.data()); err != nil {
			return err
		}
	}

	for i := range t.loops {
		if err := t.d.held.Keep(&t.loops[i]); err != nil {
			t.d.log.Warn("cannot keep a device that was told to detach", "volume_id", t.v.ID, "device", t.loops[i].Path(), "error", err)
		}
	}

	return nil
}

// attach attaches the volume's image to another loop device.
func (t *target) attach(readOnly bool) (loopdev.LoopDevice, error) {
	l, err := loopdev.AttachLoop(t.data(), readOnly)
	if err != nil {
		return l, err
	}

	t.loops = append(t.loops, l)
	t.d.seen.learnDevices(t.v.ID, t.loops)
	if t.v.Block {
		if err := t.d.held.Add(l); err != nil {
			return l, errors.Join(err, t.detach(context.Background(), l))
		}
	}

	return l, nil
}

// detach detaches a loop device from the volume and waits until it is free.
func (t *target) detach(ctx context.Context, l loopdev.LoopDevice) error {
	if err := t.d.held.Drop(l); err != nil {
		return err
	}
	return loopdev.DetachLoop(ctx, t.v.ID, t.data(), l)
}

func (t *target) data() string { return t.d.store.DataPath(t.v) }

func (t *target) look(path string) (usage.Place, error) {
	return usage.LookAt(t.d.store, t.v, t.loops, path)
}

// uses lists the paths at which the volume is mounted. At the first call for a volume, it searches
// the mount table and also finds mounts that other programs made. After that, it examines only the
// known paths. CheckUnused always finds all mounts.
func (t *target) uses() ([]usage.Use, error) {
	paths, known := t.d.seen.at(t.v.ID)
	if !known {
		uses, err := usage.UsesOf(t.v, t.loops)
		if err != nil {
			return nil, err
		}
		t.d.seen.learn(t.v.ID)
		for _, u := range uses {
			t.d.seen.learn(t.v.ID, u.Point)
		}
		return uses, nil
	}

	var found []usage.Use
	for _, p := range paths {
		at, err := t.look(p)
		switch {
		case err != nil:
			return nil, err
		case at.Kind == usage.KindOurs || at.Kind == usage.KindNode:
			found = append(found, usage.Use{Point: p, Loop: at.Loop, Node: at.Kind == usage.KindNode})
		case p != t.path:
			t.d.seen.forget(t.v.ID, p)
		}
	}

	return found, nil
}

// willMount adds a path to the volume's known paths, before a mount is made at this path. If the
// paths of the volume are not known yet, willMount does nothing, because the search of the mount
// table will find the mount.
func (t *target) willMount() {
	if _, known := t.d.seen.at(t.v.ID); known {
		t.d.seen.learn(t.v.ID, t.path)
	}
}

// loop returns the volume's attached loop device, either the writable or the read-only one. It
// returns nil if there is none. It returns an error if a device is unusable, because attaching
// another device beside it could lose writes.
func (t *target) loop(readOnly bool) (*loopdev.LoopDevice, error) {
	for i, l := range t.loops {
		if l.Stale {
			return nil, csierr.Preconditionf("the image of volume %q was deleted or replaced while it was attached to %s%s, which still shows the old one; unpublish and unstage the volume first",
				t.v.ID, l.Path(), loopdev.WhoMounts(l))
		}
		if !l.Usable() {
			return nil, csierr.Preconditionf("the image of volume %q is in use by %s%s, which the driver did not attach or which has not let go of it yet",
				t.v.ID, l.Path(), loopdev.WhoMounts(l))
		}
		if l.ReadOnly == readOnly {
			return &t.loops[i], nil
		}
	}

	return nil, nil
}

// checkImage returns an error if the image file is missing or shorter than recorded. Users would
// mistake the remaining data of a shortened image for the complete data.
func (t *target) checkImage() error {
	st, err := mounts.StatPath(t.data())
	switch {
	case err != nil:
		return err
	case !st.IsRegular():
		return csierr.Preconditionf("the image that holds the data of volume %q is missing: %s", t.v.ID, t.data())
	case int64(st.Size) < t.v.Capacity:
		return csierr.Preconditionf("the image of volume %q has %d bytes, less than the %d recorded: a part of it is lost", t.v.ID, st.Size, t.v.Capacity)
	}

	return nil
}

// takeDown removes all mounts of this volume from the path, even if several mounts are stacked. It
// also removes bind mounts of a device node if the device once belonged to the volume. If the path
// has any other mount, takeDown returns an error.
func (t *target) takeDown() (usage.Place, error) {
	for {
		at, err := t.look(t.path)
		switch {
		case err != nil:
			return at, err
		case at.Kind == usage.KindNone:
			return at, nil
		case at.Kind == usage.KindForeign && !at.Stray:
			return at, csierr.Preconditionf("the mount at %q is not volume %q, so it stays", t.path, t.v.ID)
		}

		if err := mounts.Unmount(t.path); err != nil {
			return at, err
		}
	}
}
