package localdriver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/imagefs"
	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/request"
	"github.com/volagent/volagent/agent/localdriver/store"
	"github.com/volagent/volagent/agent/localdriver/usage"
)

// ControllerGetCapabilities reports the abilities of the controller service.
func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	resp := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
	} {
		resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}

	return resp, nil
}

// CreateVolume makes a volume. If a volume of the same name already exists and fits the request,
// CreateVolume returns the existing volume.
func (d *driver) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if req.GetVolumeContentSource() != nil {
		return d.createCopy(ctx, req)
	}
	if err := request.CheckName("volume", req.GetName()); err != nil {
		return nil, err
	}

	unlock, err := d.lockName(req.GetName())
	if err != nil {
		return nil, err
	}
	defer unlock()

	if err := d.jobs.Running("volume/" + req.GetName()); err != nil {
		return nil, err
	}
	if have, ok := d.store.GetByName(req.GetName()); ok {
		if err := d.checkHave(req, have); err != nil {
			return nil, err
		}
		return &csi.CreateVolumeResponse{Volume: d.csi(have)}, nil
	}

	want, ofSize, err := d.planNew(req, nil)
	if err != nil {
		return nil, err
	}
	if err := d.checkPlan(req, want); err != nil {
		return nil, err
	}
	if want, err = d.createNew(ctx, req, want); err != nil {
		return nil, adviseDirectory(err, ofSize)
	}

	return &csi.CreateVolumeResponse{Volume: d.csi(want)}, nil
}

// checkHave returns an error if the existing volume of the same name does not fit the request.
func (d *driver) checkHave(req *csi.CreateVolumeRequest, have store.Volume) error {
	want, _, err := d.planNew(req, &have)
	if err != nil {
		return err
	}
	if err := d.checkPlan(req, want); err != nil {
		return err
	}
	return request.Satisfies(&have, want, req.GetCapacityRange())
}

// createNew makes the planned volume want. The caller holds the lock on the name.
func (d *driver) createNew(ctx context.Context, req *csi.CreateVolumeRequest, want store.Volume) (store.Volume, error) {
	var err error
	if want.Capacity, err = request.SizeFor(&want, req.GetCapacityRange()); err != nil {
		return want, err
	}

	want.ID, want.Created = store.NewID(), time.Now().UTC()
	if want.Quota > 0 {
		want.Project = d.newProject()
	}

	if want.Type == store.TypeDirectory {
		err = d.store.Add(context.WithoutCancel(ctx), want, func(dir string) error { return d.fillDirectory(ctx, dir, want) })
	} else {
		err = d.createImage(ctx, want)
	}
	if err != nil {
		return want, err
	}

	d.seen.learn(want.ID) // a new volume has no mounts yet, so the mount table need not be searched
	d.log.Info("created a volume", "volume_id", want.ID, "name", want.Name, "type", want.Type, "bytes", want.Capacity)
	return want, nil
}

// checkPlan returns an error for a planned volume that cannot be made: because it must be on
// another node, or because its mount flags or its quota are not possible.
func (d *driver) checkPlan(req *csi.CreateVolumeRequest, want store.Volume) error {
	if err := d.checkTopology(req.GetAccessibilityRequirements()); err != nil {
		return err
	}
	if err := request.CheckFlags(want, req.GetVolumeCapabilities()); err != nil {
		return err
	}
	return d.checkQuota(want, want.Quota)
}

// lockName locks the name of a volume that a call is about to create.
func (d *driver) lockName(name string) (func(), error) {
	unlock, ok := d.names.Try(name)
	if !ok {
		return nil, csierr.Errorf(codes.Aborted, "volume %q is being created", name)
	}
	return unlock, nil
}

// createImage makes an image volume. Before that, it refuses an image that could never be staged or
// filled.
func (d *driver) createImage(ctx context.Context, v store.Volume) error {
	if err := loopdev.CheckLoopControl(); err != nil {
		return err
	}
	if err := d.checkFits(v.Capacity); err != nil {
		return err
	}
	return d.store.Add(context.WithoutCancel(ctx), v, func(dir string) error { return imagefs.MakeImage(ctx, dir, v) })
}

// DeleteVolume removes a volume and its data. It returns an error while the volume is staged,
// published or otherwise mounted, or while another filesystem is mounted inside the volume. For an
// unknown id, it returns success, as CSI requires.
func (d *driver) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	id := req.GetVolumeId()
	if id == "" {
		return nil, csierr.Invalidf("the volume id is empty")
	}
	if !store.ValidID(id) {
		return &csi.DeleteVolumeResponse{}, nil
	}

	unlock, err := d.locks.Lock(id)
	if err != nil {
		return nil, err
	}
	defer unlock()

	switch v, err := d.store.Get(id); {
	// Another call may have deleted the volume but not yet removed its data.
	case errors.Is(err, store.ErrNoVolume):
	case err != nil:
		return nil, err
	default:
		if err := usage.CheckUnused(d.store, v); err != nil {
			return nil, err
		}
		if err := d.store.Trash(v); err != nil {
			return nil, err
		}

		d.seen.drop(id)
		if v.Project != 0 && d.projects.check() == nil {
			// Remove the limit, because a later volume may get the same project id.
			d.warnQuota(v, d.projects.limit(v.Project, 0))
		}

		d.log.Info("deleted a volume", "volume_id", id, "name", v.Name)
	}

	if err := d.store.Purge(ctx, id); err != nil {
		return nil, err
	}

	return &csi.DeleteVolumeResponse{}, nil
}

// ValidateVolumeCapabilities confirms the requested capabilities if CreateVolume would accept them
// for a volume of this kind.
func (d *driver) ValidateVolumeCapabilities(_ context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if req.GetVolumeId() == "" || len(req.GetVolumeCapabilities()) == 0 {
		return nil, csierr.Invalidf("the volume id and at least one volume capability must be given")
	}

	v, err := d.volume(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if why := mismatch(v, req); why != "" {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: why}, nil
	}

	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
			VolumeContext:      req.GetVolumeContext(),
			VolumeCapabilities: req.GetVolumeCapabilities(),
			Parameters:         req.GetParameters(),
		},
	}, nil
}

// mismatch describes how a volume differs from the volume that the request describes. It returns ""
// if nothing differs.
func mismatch(v store.Volume, req *csi.ValidateVolumeCapabilitiesRequest) string {
	for _, c := range req.GetVolumeCapabilities() {
		if _, err := request.ParseAccessFor(v, c); err != nil {
			return err.Error()
		}
	}

	if got := req.GetVolumeContext(); len(got) > 0 && !maps.Equal(identifying(got), identifying(v.Context())) {
		return fmt.Sprintf("the volume context is %v, not %v", v.Context(), got)
	}
	if len(req.GetParameters()) == 0 {
		return ""
	}

	p, err := request.ParseParams(req.GetParameters())
	switch {
	case err != nil:
		return err.Error()
	case p.Typ != "" && p.Typ != v.Type, p.FsType != "" && p.FsType != v.FSType:
		return fmt.Sprintf("the parameters do not match volume %q: %s", v.ID, v.Describe())
	}

	return ""
}

// identifying returns a copy of a volume context without the keys whose values may change.
func identifying(context map[string]string) map[string]string {
	context = maps.Clone(context)
	delete(context, store.ContextSize)
	return context
}

// ListVolumes returns one page of volumes, in the order of their ids. The token of a page is the
// last id of the page before. So if a volume is created or deleted between two calls, no other
// volume is skipped or listed twice.
func (d *driver) ListVolumes(_ context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	if req.GetMaxEntries() < 0 {
		return nil, csierr.Invalidf("max_entries is %d", req.GetMaxEntries())
	}

	after := req.GetStartingToken()
	if after != "" && !store.ValidID(after) {
		return nil, csierr.Errorf(codes.Aborted, "the starting token %q is not one of ours; start again without", after)
	}

	all := d.store.List()
	all = slices.DeleteFunc(all, func(v store.Volume) bool { return v.ID <= after })
	resp := &csi.ListVolumesResponse{}
	if n := int(req.GetMaxEntries()); n > 0 && n < len(all) {
		all = all[:n]
		resp.NextToken = all[n-1].ID
	}

	for _, v := range all {
		resp.Entries = append(resp.Entries, &csi.ListVolumesResponse_Entry{Volume: d.csi(v)})
	}

	return resp, nil
}

// ControllerGetVolume returns the same data about one volume that ListVolumes returns about all
// volumes.
func (d *driver) ControllerGetVolume(_ context.Context, req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	v, err := d.volume(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: d.csi(v),
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{},
	}, nil
}

// GetCapacity reports the free bytes of the filesystem that contains the state directory. The sizes
// of all images may add up to more bytes, because images are sparse. The images then compete for
// the free space.
func (d *driver) GetCapacity(_ context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	p, err := request.ParseParams(req.GetParameters())
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(req.GetVolumeCapabilities(), p.Cannot) || !d.isHere(req.GetAccessibleTopology()) {
		return &csi.GetCapacityResponse{}, nil
	}

	free, total, err := d.space()
	if err != nil {
		return nil, err
	}

	resp := &csi.GetCapacityResponse{AvailableCapacity: free}
	if p.Typ == store.TypeImage {
		resp.MaximumVolumeSize = wrapperspb.Int64(total)
	}

	return resp, nil
}

// checkFits refuses an image that is larger than the whole filesystem, because such an image could
// never be filled.
func (d *driver) checkFits(size int64) error {
	_, total, err := d.space()
	if err == nil && size > total {
		err = csierr.OutOfRangef("an image of %d bytes does not fit: the filesystem of %q has %d", size, d.store.Root, total)
	}
	return err
}

// space returns the free and total bytes of the filesystem that holds the volumes.
func (d *driver) space() (free, total int64, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(d.store.Root, &fs); err != nil {
		return 0, 0, fmt.Errorf("cannot measure the filesystem of %q: %w", d.store.Root, err)
	}
	return int64(fs.Bavail) * fs.Frsize, int64(fs.Blocks) * fs.Frsize, nil
}
