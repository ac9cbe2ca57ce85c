package localdriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/agent/localdriver/request"
	"github.com/volagent/volagent/agent/localdriver/usage"
)

// NodePublishVolume makes a staged volume visible at a target path. It bind-mounts the staging path
// there, or the node of the volume's loop device.
func (d *driver) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if req.GetVolumeId() != "" && req.GetTargetPath() != "" && req.GetVolumeCapability() == nil {
		return nil, csierr.Invalidf("the volume capability is missing")
	}

	t, unlock, err := d.open(req.GetVolumeId(), "target path", req.GetTargetPath())
	if err != nil {
		return nil, err
	}
	defer unlock()

	a, err := request.ParseAccessFor(t.v, req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	if req.GetStagingTargetPath() == "" {
		return nil, csierr.Preconditionf("the staging path is not set")
	}

	staging, err := usage.CheckPath(d.store, "staging path", req.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	if staging == t.path {
		return nil, csierr.Invalidf("the staging path and the target path are the same, %q", staging)
	}

	readOnly := req.GetReadonly() || a.ReaderOnly || a.Flags.ReadOnly()
	if a.Block {
		err = t.publishBlock(a, staging, readOnly)
	} else {
		err = t.publishMount(ctx, a, staging, readOnly)
	}
	if err != nil {
		return nil, err
	}

	return &csi.NodePublishVolumeResponse{}, nil
}

func (t *target) publishMount(ctx context.Context, a request.Access, staging string, readOnly bool) error {
	from, err := t.look(staging)
	if err != nil {
		return err
	}
	if from.Kind != usage.KindOurs {
		return csierr.Preconditionf("volume %q is not staged at %q", t.v.ID, staging)
	}
	if from.Dead != nil {
		return from.Refuse(t.v.ID)
	}

	stagedRO, err := mounts.IsReadOnly(staging)
	if err != nil {
		return err
	}

	readOnly = readOnly || stagedRO
	if done, err := t.published(usage.KindOurs, readOnly); done || err != nil {
		return err
	}
	if err := t.admitPath(a, staging); err != nil {
		return err
	}
	if err := t.giveToGroup(ctx, a, staging); err != nil {
		return err
	}

	t.willMount()
	if err := makeTarget(t.path, true); err != nil {
		return err
	}

	flags := a.Flags
	if readOnly {
		flags.Set |= unix.MOUNT_ATTR_RDONLY
	}

	err = mounts.Bind(staging, t.path, flags)
	if err == nil {
		err = t.confirm(usage.KindOurs)
	}
	if err == nil {
		err = t.confirmReadOnly(readOnly)
	}

	return t.orRemove(err)
}

// confirmReadOnly checks that the mount at the target is read-only, if it must be.
func (t *target) confirmReadOnly(want bool) error {
	ro, err := mounts.IsReadOnly(t.path)
	if err == nil && want && !ro {
		err = csierr.Internalf("volume %q is mounted at %q, but not read-only", t.v.ID, t.path)
	}
	return err
}

// publishBlock bind-mounts the node of a raw volume's writable loop device. For a read-only target,
// it uses a second, read-only loop device. It returns an error if this would publish both devices
// at once, because their caches are not coherent.
func (t *target) publishBlock(a request.Access, staging string, readOnly bool) error {
	rw, err := t.loop(false)
	if err != nil {
		return err
	}
	if rw == nil {
		return csierr.Preconditionf("volume %q is not staged for block access", t.v.ID)
	}
	if err := t.checkImage(); err != nil {
		return err
	}

	uses, err := t.uses()
	if err != nil {
		return err
	}

	for _, u := range uses {
		if !u.Node {
			return csierr.Preconditionf("volume %q cannot be published as a block device: its filesystem is mounted at %q", t.v.ID, u.Point)
		}
	}

	if done, err := t.published(usage.KindNode, readOnly); done || err != nil {
		return err
	}

	for _, u := range uses {
		if u.Loop.ReadOnly != readOnly {
			return csierr.Preconditionf("volume %q cannot be published with read-only %t: it is published with read-only %t at %q, and a block volume cannot be both",
				t.v.ID, readOnly, u.Loop.ReadOnly, u.Point)
		}
	}

	if err := t.admitPath(a, staging); err != nil {
		return err
	}

	dev := *rw
	if readOnly {
		if dev, err = t.readOnlyLoop(*rw); err != nil {
			return err
		}
	}

	t.willMount()
	if err := makeTarget(t.path, false); err != nil {
		return err
	}

	err = mounts.Bind(dev.Path(), t.path, mounts.MountFlags{})
	if err == nil {
		err = t.confirmNode(dev)
	}

	return t.orRemove(err)
}

// readOnlyLoop returns the read-only loop device, and attaches it if necessary. Before that, it
// writes out the cached data of the writable device.
func (t *target) readOnlyLoop(rw loopdev.LoopDevice) (loopdev.LoopDevice, error) {
	if err := loopdev.FlushLoop(rw); err != nil {
		return loopdev.LoopDevice{}, err
	}

	l, err := t.loop(true)
	if err != nil {
		return loopdev.LoopDevice{}, err
	}
	if l != nil {
		return *l, nil
	}

	return t.attach(true)
}

// confirmNode checks that the target shows the intended loop device, and that the target is
// read-only if the device is.
func (t *target) confirmNode(want loopdev.LoopDevice) error {
	at, err := t.look(t.path)
	if err != nil {
		return err
	}
	if at.Kind != usage.KindNode || at.Loop.Rdev != want.Rdev {
		return csierr.Internalf("%s was bound to %q, but something else is there now", want.Path(), t.path)
	}

	ro, err := loopdev.BlockReadOnly(t.path)
	if err == nil && ro != want.ReadOnly {
		err = csierr.Internalf("%s at %q answers read-only %t, not %t", want.Path(), t.path, ro, want.ReadOnly)
	}

	return err
}

// published reports whether the target is already published exactly as requested. It returns an
// error if the target is published in another way.
func (t *target) published(want usage.Kind, readOnly bool) (bool, error) {
	at, err := t.look(t.path)
	if err != nil {
		return false, err
	}

	var ro bool
	switch {
	case at.Kind == usage.KindNone:
		return false, nil
	case at.Stray:
		return false, csierr.Preconditionf("the loop device of volume %q, which was published at %q, has been detached; unpublish and unstage the volume, and stage it again", t.v.ID, t.path)
	case at.Kind == usage.KindForeign:
		return false, csierr.Preconditionf("the mount at %q is not volume %q", t.path, t.v.ID)
	case at.Kind != want:
		return false, csierr.Existsf("volume %q is published at %q with another access type", t.v.ID, t.path)
	case at.Kind == usage.KindNode:
		ro = at.Loop.ReadOnly
	default:
		if ro, err = mounts.IsReadOnly(t.path); err != nil {
			return false, err
		}
	}

	if ro != readOnly {
		return false, csierr.Existsf("volume %q is published at %q with read-only %t, not %t", t.v.ID, t.path, ro, readOnly)
	}

	return true, nil
}

// orRemove undoes a publish that failed halfway with err. It returns err, joined with the error of
// the removal if the removal fails, too.
func (t *target) orRemove(err error) error {
	if err == nil {
		return nil
	}
	_, undo := t.takeDown()
	if undo == nil {
		undo = removeTarget(t.path)
	}
	return errors.Join(err, undo)
}

// makeTarget makes the mount point, which is a directory or an empty file. If the mount point
// already exists, it must be empty, because a mount would hide its content.
func makeTarget(path string, dir bool) error {
	fail := func(err error) error { return fmt.Errorf("cannot make the target path %q: %w", path, err) }
	st, err := mounts.StatPath(path)
	if err != nil {
		return err
	}

	switch {
	case !st.Exists && dir:
		err = os.Mkdir(path, 0o750)
	case !st.Exists:
		var f *os.File
		if f, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
			err = f.Close()
		}
	case dir && !st.IsDir(), !dir && (!st.IsRegular() || st.Size > 0):
		return csierr.Preconditionf("the target path %q exists, and the driver did not make it", path)
	case dir:
		list, err := os.ReadDir(path)
		if err != nil {
			return fail(err)
		}
		if len(list) > 0 {
			return csierr.Preconditionf("the target path %q is a directory that is not empty", path)
		}
	}

	if errors.Is(err, os.ErrNotExist) {
		return csierr.Preconditionf("the parent directory of the target path %q does not exist", path)
	}
	if err != nil {
		return fail(err)
	}

	return nil
}

// removeTarget removes a mount point that makeTarget has made. It returns an error for a file or
// directory that is not empty.
func removeTarget(path string) error {
	st, err := mounts.StatPath(path)
	switch {
	case err != nil || !st.Exists:
		return err
	case st.IsDir():
		err = unix.Rmdir(path)
	case st.IsRegular() && st.Size == 0:
		err = unix.Unlink(path)
	default:
		return csierr.Preconditionf("the driver did not make the target path %q, so it stays", path)
	}

	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return csierr.Preconditionf("the target path %q is not mounted and not empty; it is left alone", path)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cannot remove the target path %q: %w", path, err)
	}

	return nil
}

// NodeUnpublishVolume unmounts a target and removes its mount point. A target that does not exist
// counts as success.
func (d *driver) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	t, unlock, err := d.openToRelease(req.GetVolumeId(), "target path", req.GetTargetPath())
	if err != nil {
		return nil, err
	}
	defer unlock()

	if _, err := t.takeDown(); err != nil {
		return nil, err
	}
	if err := removeTarget(t.path); err != nil {
		return nil, err
	}

	d.seen.forget(t.v.ID, t.path)
	if err := t.dropReadOnlyLoop(ctx); err != nil {
		return nil, err
	}

	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// dropReadOnlyLoop detaches the read-only loop device after its last target has been unpublished.
// If an earlier call failed to detach the device, this call finds it again.
func (t *target) dropReadOnlyLoop(ctx context.Context) error {
	for _, l := range t.loops {
		if !l.ReadOnly {
			continue
		}

		uses, err := t.uses()
		if err != nil {
			return err
		}
		if slices.ContainsFunc(uses, func(u usage.Use) bool { return u.Loop.Rdev == l.Rdev }) {
			continue
		}
		if err := t.detach(ctx, l); err != nil {
			return err
		}
	}

	return nil
}
