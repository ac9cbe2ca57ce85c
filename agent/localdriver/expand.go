package localdriver

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/imagefs"
	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/request"
	"github.com/volagent/volagent/agent/localdriver/store"
	"github.com/volagent/volagent/agent/localdriver/usage"
)

// A volume grows in this order:
//
//  1. The image file gets longer, durably. No process reads the new range yet.
//  2. volume.json records the new size, durably. The recorded size never exceeds the file's size, so
//     a file shorter than recorded always means a loss.
//  3. The loop devices show the new size.
//  4. The filesystem grows, at NodeExpandVolume or at the next staging.
//
// After a crash between two steps, the volume has either the old or the new size. Every step first
// checks whether it is already done, so a repeated call continues with the remaining steps. At its
// start, the driver completes the second step.

// ControllerExpandVolume makes a volume larger, whether or not the volume is in use. For a
// directory, it records the new size. If the quota of the directory follows the size, it raises the
// quota, too. If the volume is already large enough, the call succeeds.
func (d *driver) ControllerExpandVolume(ctx context.Context, req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if req.GetVolumeId() != "" && req.GetCapacityRange() == nil {
		return nil, csierr.Invalidf("the capacity range is missing")
	}
	if _, err := d.volume(req.GetVolumeId()); err != nil {
		return nil, err
	}

	unlock, err := d.locks.Lock(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer unlock()

	v, err := d.volume(req.GetVolumeId())
	if err != nil {
		return nil, err
	}

	a, err := expandAccess(v, req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}

	size, err := request.GrowTo(&v, req.GetCapacityRange())
	if err != nil {
		return nil, err
	}

	grown := v
	grown.Capacity = size
	if v.QuotaIsSize {
		grown.Quota = request.RoundQuota(size)
	}

	if v.Type == store.TypeImage {
		err = d.growImage(v, size)
	}
	if err == nil && size > v.Capacity {
		err = d.store.Rewrite(grown)
	}
	if err == nil && v.Type == store.TypeImage {
		err = d.growLoops(grown)
	}
	if err == nil && v.QuotaIsSize {
		err = d.enforce(ctx, grown)
	}
	if err != nil {
		return nil, err
	}

	if size > v.Capacity {
		d.log.Info("grew a volume", "volume_id", v.ID, "name", v.Name, "from_bytes", v.Capacity, "bytes", size)
	}

	return &csi.ControllerExpandVolumeResponse{
		CapacityBytes:         size,
		NodeExpansionRequired: v.FSType != "" && !a.Block,
	}, nil
}

// expandAccess parses the optional capability in a request to expand a volume. If the volume does
// not have this capability, CSI requires INVALID_ARGUMENT here.
func expandAccess(v store.Volume, c *csi.VolumeCapability) (request.Access, error) {
	if c == nil {
		return request.Access{}, nil
	}
	a, err := request.ParseAccessFor(v, c)
	if err != nil {
		return a, csierr.Invalidf("%v", err)
	}
	return a, nil
}

// growImage makes the file of an image longer and waits until the change is on disk. It never makes
// a file shorter.
func (d *driver) growImage(v store.Volume, size int64) error {
	fail := func(err error) error { return fmt.Errorf("cannot grow the image of volume %q: %w", v.ID, err) }
	if size > v.Capacity {
		if err := d.checkFits(size); err != nil {
			return err
		}
	}

	f, err := os.OpenFile(d.store.DataPath(v), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fail(err)
	}

	st, err := f.Stat()
	switch {
	case err != nil:
	case st.Size() < v.Capacity:
		err = csierr.Preconditionf("it has %d bytes, less than the %d recorded: a part of it is lost", st.Size(), v.Capacity)
	case st.Size() < size:
		err = f.Truncate(size)
		if errors.Is(err, unix.EFBIG) {
			err = csierr.OutOfRangef("%d bytes are more than its filesystem allows for one file", size)
		}
		if err == nil {
			err = f.Sync()
		}
	}

	if err = errors.Join(err, f.Close()); err != nil {
		return fail(err)
	}

	return nil
}

// growLoops makes the loop devices of an image show the full size of the image.
func (d *driver) growLoops(v store.Volume) error {
	loops, err := loopdev.LoopsOf(v.ID, d.store.DataPath(v))
	if err != nil {
		return err
	}

	for _, l := range loops {
		if err := loopdev.GrowLoop(l, v.Capacity); err != nil {
			return err
		}
	}

	return nil
}

// NodeExpandVolume makes the loop device and the filesystem of a staged or published volume as
// large as the volume. It does only the steps that are still necessary, so it can be repeated.
func (d *driver) NodeExpandVolume(_ context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	if _, err := d.volume(req.GetVolumeId()); err != nil {
		return nil, err
	}

	t, unlock, err := d.open(req.GetVolumeId(), "volume path", req.GetVolumePath())
	if err != nil {
		return nil, err
	}
	defer unlock()

	if _, err := expandAccess(t.v, req.GetVolumeCapability()); err != nil {
		return nil, err
	}

	size, err := request.GrowTo(&t.v, req.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	if size > t.v.Capacity {
		return nil, csierr.OutOfRangef("volume %q has %d bytes; ControllerExpandVolume must make them %d first", t.v.ID, t.v.Capacity, size)
	}

	at, err := t.look(t.path)
	if err != nil {
		return nil, err
	}
	if at.Dead != nil {
		return nil, at.Refuse(t.v.ID)
	}

	staged := at.Kind == usage.KindNode || at.Kind == usage.KindOurs
	if !staged && t.v.Type == store.TypeImage && len(t.loops) > 0 && t.v.Block && at.Kind == usage.KindNone {
		staged = true // a raw block volume is staged without a mount at its staging path
	}

	if !staged {
		return nil, csierr.Errorf(codes.NotFound, "volume %q is neither staged nor published at %q", t.v.ID, t.path)
	}

	for _, l := range t.loops {
		if err := loopdev.GrowLoop(l, t.v.Capacity); err != nil {
			return nil, err
		}
	}

	switch {
	case at.Kind != usage.KindOurs || t.v.Type != store.TypeImage:
	case imagefs.TooSmallToGrow(t.v.FSType, t.v.Capacity):
		// An older driver may have made an image whose filesystem the kernel cannot resize. The
		// volume remains usable.
		t.warnSmall(imagefs.GrowFilesystem(at.Loop.Path(), t.path, t.v.FSType))
	default:
		if err := imagefs.GrowFilesystem(at.Loop.Path(), t.path, t.v.FSType); err != nil {
			return nil, err
		}
	}

	return &csi.NodeExpandVolumeResponse{CapacityBytes: t.v.Capacity}, nil
}
