package localdriver

import (
	"context"
	"errors"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/imagefs"
	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/agent/localdriver/request"
	"github.com/volagent/volagent/agent/localdriver/store"
	"github.com/volagent/volagent/agent/localdriver/usage"
)

// NodeStageVolume mounts a volume at its staging path. For a raw block volume, it only attaches the
// loop device. An existing mount counts as staged only if it is a mount of this volume.
func (d *driver) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if req.GetVolumeId() != "" && req.GetStagingTargetPath() != "" && req.GetVolumeCapability() == nil {
		return nil, csierr.Invalidf("the volume capability is missing")
	}

	t, unlock, err := d.open(req.GetVolumeId(), "staging path", req.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	defer unlock()

	a, err := request.ParseAccessFor(t.v, req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}

	at, err := t.look(t.path)
	if err != nil {
		return nil, err
	}

	if a.Block {
		err = t.stageBlock(at)
	} else {
		err = t.stageMount(ctx, a, at)
		if err == nil {
			err = t.giveToGroup(ctx, a, t.path)
		}
	}
	if err != nil {
		return nil, err
	}

	return &csi.NodeStageVolumeResponse{}, nil
}

func (t *target) stageBlock(at usage.Place) error {
	if at.Kind == usage.KindOurs {
		return csierr.Existsf("volume %q is staged at %q with a filesystem, not for block access", t.v.ID, t.path)
	}

	uses, err := t.uses()
	if err != nil {
		return err
	}

	for _, u := range uses {
		if !u.Node {
			return csierr.Preconditionf("volume %q cannot be staged for block access: its filesystem is mounted at %q", t.v.ID, u.Point)
		}
	}

	l, err := t.loop(false)
	if err == nil {
		err = t.checkImage()
	}
	if err != nil || l != nil {
		return err
	}

	_, err = t.attach(false)
	return err
}

func (t *target) stageMount(ctx context.Context, a request.Access, at usage.Place) error {
	switch {
	case at.Dead != nil:
		return at.Refuse(t.v.ID)
	case at.Kind == usage.KindOurs:
		ro, err := mounts.IsReadOnly(t.path)
		if err != nil {
			return err
		}
		if ro != a.Flags.ReadOnly() {
			return csierr.Existsf("volume %q is staged at %q with read-only %t, not %t", t.v.ID, t.path, ro, a.Flags.ReadOnly())
		}
		// An earlier call may have died after the mount but before it made the mount private.
		return mounts.Isolate(t.path)
	case at.Kind != usage.KindNone:
		return csierr.Preconditionf("the mount at %q is not volume %q", t.path, t.v.ID)
	case !at.Exists:
		return csierr.Preconditionf("the staging path %q does not exist", t.path)
	case !at.IsDir():
		return csierr.Preconditionf("the staging path %q is not a directory", t.path)
	}

	t.willMount()
	var err error
	if t.v.Type == store.TypeDirectory {
		t.d.warnQuota(t.v, t.d.enforce(ctx, t.v))
		err = t.stageDirectory(a)
	} else {
		err = t.stageImage(ctx, a)
	}
	if err != nil {
		return err
	}

	return t.confirm(usage.KindOurs)
}

func (t *target) stageDirectory(a request.Access) error {
	data, err := mounts.StatPath(t.data())
	if err != nil {
		return err
	}
	if !data.IsDir() || data.MountRoot {
		return csierr.Preconditionf("the directory of volume %q is missing, or something is mounted on %q", t.v.ID, t.data())
	}
	if err := mounts.Bind(t.data(), t.path, a.Flags); err != nil {
		return err
	}

	return mounts.Isolate(t.path)
}

func (t *target) stageImage(ctx context.Context, a request.Access) error {
	uses, err := t.uses()
	if err != nil {
		return err
	}

	for _, u := range uses {
		if u.Node {
			return csierr.Preconditionf("volume %q cannot be mounted: it is published as a block device at %q", t.v.ID, u.Point)
		}
	}

	l, err := t.loop(false)
	if err == nil {
		err = t.checkImage()
	}
	if err != nil {
		return err
	}

	attached := l == nil
	if attached {
		fresh, err := t.attach(false)
		if err != nil {
			return err
		}
		l = &fresh
	}

	// A check is safe only if the filesystem is not mounted. If targets still have the filesystem
	// mounted, the kernel only makes another mount of it.
	if len(uses) == 0 {
		if err = imagefs.CheckFilesystem(ctx, t.v.FSType, l.Path()); err == nil && !a.Flags.ReadOnly() {
			t.warnSmall(imagefs.GrowBeforeMount(ctx, t.v.FSType, l.Path()))
		}
	}
	if err == nil {
		err = mounts.MountDevice(l.Path(), t.path, t.v.FSType, a.Flags)
	}
	if err != nil && attached {
		return errors.Join(err, t.detach(context.WithoutCancel(ctx), *l))
	}
	if err != nil {
		return err
	}

	if !a.Flags.ReadOnly() {
		t.warnSmall(imagefs.GrowFilesystem(l.Path(), t.path, t.v.FSType))
	}

	return mounts.Isolate(t.path)
}

// warnSmall logs that a filesystem could not be grown to the size of its image. The filesystem
// remains usable. NodeExpandVolume returns the error to its caller.
func (t *target) warnSmall(err error) {
	if err != nil {
		t.d.log.Warn("a filesystem stays smaller than its volume", "volume_id", t.v.ID, "error", err)
	}
}

// confirm checks that the mount that was made at the path is the intended one.
func (t *target) confirm(want usage.Kind) error {
	at, err := t.look(t.path)
	if err != nil {
		return err
	}
	if at.Kind != want {
		return csierr.Internalf("volume %q was mounted at %q, but something else is there now", t.v.ID, t.path)
	}
	return nil
}

// NodeUnstageVolume unmounts the staging path and detaches the loop devices. It returns an error
// while the volume is published, so that no process loses access.
func (d *driver) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	t, unlock, err := d.openToRelease(req.GetVolumeId(), "staging path", req.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	defer unlock()

	uses, err := t.uses()
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(uses, func(u usage.Use) bool { return u.Point != t.path }); i >= 0 {
		return nil, csierr.Preconditionf("volume %q cannot be unstaged: it is still mounted at %q", t.v.ID, uses[i].Point)
	}
	if _, err := t.takeDown(); err != nil {
		return nil, err
	}

	d.seen.forget(t.v.ID, t.path)
	for _, l := range t.loops {
		if err := t.detach(ctx, l); err != nil {
			return nil, err
		}
	}

	return &csi.NodeUnstageVolumeResponse{}, nil
}
