package localdriver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/imagefs"
	"github.com/volagent/volagent/agent/localdriver/jobs"
	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/request"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// origin is the source of a copy: a snapshot or a volume from which a new volume is made.
type origin struct {
	id     string
	isSnap bool
	typ    string
	fsType string
	size   int64 // size in bytes; the copy has at least the same size
}

func originOf(v store.Volume) origin {
	return origin{id: v.ID, typ: v.Type, fsType: v.FSType, size: v.Capacity}
}

func originOfSnapshot(s store.Snapshot) origin {
	return origin{id: s.ID, isSnap: true, typ: s.Type, fsType: s.FSType, size: s.Size}
}

func (o origin) String() string {
	kind := "volume"
	if o.isSnap {
		kind = "snapshot"
	}
	return fmt.Sprintf("%s %q", kind, o.id)
}

// createCopy implements CreateVolume for a request with a content source. It answers only when the
// copy is complete. See CreateSnapshot for copies that take long.
func (d *driver) createCopy(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if err := request.CheckName("volume", req.GetName()); err != nil {
		return nil, err
	}

	unlock, err := d.lockName(req.GetName())
	if err != nil {
		return nil, err
	}
	defer unlock()

	v, err := d.createFrom(ctx, req)
	if err != nil {
		return nil, err
	}

	return &csi.CreateVolumeResponse{Volume: d.csi(v)}, nil
}

// createFrom makes a volume as a copy of a snapshot or of another volume. The caller holds the lock
// on the name.
func (d *driver) createFrom(ctx context.Context, req *csi.CreateVolumeRequest) (store.Volume, error) {
	have, exists := d.store.GetByName(req.GetName())
	from, err := d.origin(req.GetVolumeContentSource(), have)
	if err != nil {
		return store.Volume{}, err
	}

	want, err := planCopy(req, from)
	if err != nil {
		return store.Volume{}, err
	}
	if err := d.checkPlan(req, want); err != nil {
		return store.Volume{}, err
	}
	if exists {
		return have, request.Satisfies(&have, want, req.GetCapacityRange())
	}
	if want.Capacity, err = sizeForCopy(&want, req.GetCapacityRange(), from); err != nil {
		return store.Volume{}, err
	}
	if err := d.checkCopy(want); err != nil {
		return store.Volume{}, err
	}

	err = d.jobs.Do(ctx, "volume/"+want.Name, fmt.Sprint(from.id, want.Capacity, want.Block),
		fmt.Sprintf("volume %q, a copy of %s,", want.Name, from),
		func(ctx context.Context, p *jobs.Progress) error { return d.makeCopy(ctx, want, from, p) })
	if err != nil {
		return store.Volume{}, err
	}

	made, ok := d.store.GetByName(want.Name)
	if !ok {
		return made, csierr.Errorf(codes.Aborted, "volume %q was deleted as soon as it was made", want.Name)
	}

	return made, nil
}

// origin finds the source that a request names. If the source has been deleted, origin takes the
// properties from the existing volume have, which is an earlier copy of the same source.
func (d *driver) origin(src *csi.VolumeContentSource, have store.Volume) (origin, error) {
	id := src.GetVolume().GetVolumeId()
	if src.GetSnapshot() != nil {
		id = src.GetSnapshot().GetSnapshotId()
	}

	if id != "" && id == have.Source {
		o := originOf(have)
		o.id, o.isSnap, o.size = id, src.GetSnapshot() != nil, 0
		return o, nil
	}

	switch {
	case src.GetSnapshot() != nil:
		snap, err := d.snapshot(id)
		return originOfSnapshot(snap), err
	case src.GetVolume() != nil:
		v, err := d.volume(id)
		return originOf(v), err
	}

	return origin{}, csierr.Invalidf("the content source is neither a snapshot nor a volume")
}

// planCopy plans a volume with the type and filesystem of its source. It refuses a request for
// another type or filesystem.
func planCopy(req *csi.CreateVolumeRequest, from origin) (store.Volume, error) {
	blank := proto.CloneOf(req)
	blank.VolumeContentSource = nil
	blank.Parameters = maps.Clone(req.GetParameters())
	if blank.Parameters == nil {
		blank.Parameters = map[string]string{}
	}
	if blank.Parameters[store.ParamFSType] == "" && from.fsType != "" && !namesFilesystem(req) {
		blank.Parameters[store.ParamFSType] = from.fsType
	}

	want, err := request.Plan(blank, from.typ)
	if err != nil {
		return want, fmt.Errorf("cannot make a copy of %s: %w", from, err)
	}

	switch {
	case want.Type != from.typ:
		return want, csierr.Invalidf("type %q is asked for, but %s has type %q, and a copy has the same", want.Type, from, from.typ)
	case want.FSType != from.fsType && from.fsType == "":
		return want, csierr.Invalidf("a filesystem is asked for, but %s is a raw image; list only block access", from)
	case want.FSType != from.fsType:
		return want, csierr.Invalidf("fs_type %q is asked for, but %s holds %q, and a copy has the same", want.FSType, from, from.fsType)
	}

	want.Source = from.id
	return want, nil
}

// namesFilesystem reports whether a capability of the request names a filesystem.
func namesFilesystem(req *csi.CreateVolumeRequest) bool {
	return slices.ContainsFunc(req.GetVolumeCapabilities(), func(c *csi.VolumeCapability) bool { return c.GetMount().GetFsType() != "" })
}

// sizeForCopy chooses the capacity of a copy in bytes: at least the capacity of the source.
func sizeForCopy(v *store.Volume, r *csi.CapacityRange, from origin) (int64, error) {
	if limit := r.GetLimitBytes(); limit > 0 && limit < from.size {
		return 0, csierr.OutOfRangef("%s has %d bytes, and a copy cannot have less; limit_bytes is %d", from, from.size, limit)
	}
	if r.GetRequiredBytes() > from.size {
		return request.SizeToGrow(v, r)
	}
	return request.SizeFor(v, &csi.CapacityRange{RequiredBytes: from.size, LimitBytes: r.GetLimitBytes()})
}

// checkCopy returns an error if the planned volume could never be staged or filled. The driver
// calls checkCopy before it copies anything.
func (d *driver) checkCopy(v store.Volume) error {
	if v.Type != store.TypeImage {
		return nil
	}
	if err := loopdev.CheckLoopControl(); err != nil {
		return err
	}
	return d.checkFits(v.Capacity)
}

func (d *driver) makeCopy(ctx context.Context, want store.Volume, from origin, p *jobs.Progress) error {
	if _, ok := d.store.GetByName(want.Name); ok {
		return nil // another call has made the volume since the earlier check
	}

	want.ID, want.Created = store.NewID(), time.Now().UTC()
	if want.Quota > 0 {
		want.Project = d.newProject()
	}

	fill, release, err := d.reader(from, want, p)
	if err != nil {
		return err
	}
	defer release()

	err = d.store.Add(ctx, want, func(dir string) error {
		if err := fill(ctx, dir); err != nil {
			return err
		}
		if want.Type == store.TypeImage {
			return imagefs.RenewImage(ctx, want, dir)
		}
		return d.countDirectory(ctx, dir, want)
	})
	if err != nil {
		return err
	}

	d.seen.learn(want.ID) // a new volume has no mounts yet, so the mount table need not be searched
	d.log.Info("made a copy", "volume_id", want.ID, "name", want.Name, "source", from.id, "bytes", want.Capacity)
	return nil
}

// reader locks the source of a copy. It returns a function that copies the data of the source into
// a directory.
func (d *driver) reader(from origin, want store.Volume, p *jobs.Progress) (fill func(ctx context.Context, dir string) error, release func(), err error) {
	if from.isSnap {
		unlock, err := d.locks.LockToRelease(from.id)
		if err != nil {
			return nil, nil, err
		}
		defer unlock()

		snap, err := d.snapshot(from.id)
		if err != nil {
			return nil, nil, err
		}

		return func(ctx context.Context, dir string) error {
			return d.copyContent(ctx, snap.Type, d.store.SnapshotData(snap), snap.Size, dir, p)
		}, d.locks.BeginCopy(snap.ID, p), nil
	}

	c, err := d.hold([]string{from.id}, false)
	if err != nil {
		return nil, nil, err
	}
	if now := c.volumes()[0].Capacity; now > want.Capacity {
		c.release()
		return nil, nil, csierr.OutOfRangef("%s has grown to %d bytes, which is more than the %d bytes of its copy", from, now, want.Capacity)
	}

	return func(ctx context.Context, dir string) error { return c.take(ctx, []string{dir}, p) }, c.release, nil
}
