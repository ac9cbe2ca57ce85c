package csitest

import (
	"context"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// CreateVolume creates a volume. If the request names a source, the new volume gets the content of
// the source.
func (s *controller) CreateVolume(_ context.Context, m *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	id := s.p.newID(m.GetName())
	if id == "" || len(m.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "a volume needs a name and capabilities")
	}

	want := stored{
		ID: id, Name: m.GetName(), Context: contextOf(m.GetName()), Mutable: m.GetMutableParameters(), Topology: s.place(m.GetAccessibilityRequirements()),
		Snapshot: m.GetVolumeContentSource().GetSnapshot().GetSnapshotId(), Clone: m.GetVolumeContentSource().GetVolume().GetVolumeId(),
	}
	defer s.p.store.lock(id, want.Clone, snapshotLock(want.Snapshot))()
	v := stored{ID: id}
	found, err := readJSON(s.p.store.path(id, "volume.json"), &v)
	if err != nil {
		return nil, err
	}
	if found {
		least, most := m.GetCapacityRange().GetRequiredBytes(), m.GetCapacityRange().GetLimitBytes()
		if v.Capacity < least || (most > 0 && v.Capacity > most) {
			return nil, status.Errorf(codes.AlreadyExists, "volume %q has %d bytes", id, v.Capacity)
		}
		if v.Snapshot != want.Snapshot || v.Clone != want.Clone {
			return nil, status.Errorf(codes.AlreadyExists, "volume %q was made from another source", id)
		}

		return &csi.CreateVolumeResponse{Volume: asVolume(v)}, nil
	}
	if err := s.knowsMutable(want.Mutable); err != nil {
		return nil, err
	}

	content, size, err := s.source(want)
	if err != nil {
		return nil, err
	}
	if want.Capacity, err = s.fit(m.GetCapacityRange(), size); err != nil {
		return nil, err
	}

	want.Usable = want.Capacity
	if content != "" {
		if err := copyContent(content, s.p.store.path(id)); err != nil {
			return nil, err
		}
	}

	return &csi.CreateVolumeResponse{Volume: asVolume(want)}, s.p.store.make(want)
}

// source returns the directory of the source of a volume, and the minimum size that the source
// requires.
func (s *controller) source(v stored) (dir string, size int64, err error) {
	switch {
	case v.Snapshot != "":
		snap, err := s.p.store.snapshot(v.Snapshot)
		if err == nil && !s.p.ready(snap) {
			err = status.Errorf(codes.FailedPrecondition, "snapshot %q is not ready to be used", v.Snapshot)
		}

		return s.p.store.snapshotPath(v.Snapshot), snap.Size, err
	case v.Clone != "":
		from, err := s.p.store.get(v.Clone)
		return s.p.store.path(v.Clone), from.Capacity, err
	default:
		return "", 0, nil
	}
}

// fit returns a size that is within a capacity range and is at least the given size.
func (s *controller) fit(r *csi.CapacityRange, size int64) (int64, error) {
	most := s.p.cfg.Storage
	if limit := r.GetLimitBytes(); limit > 0 {
		most = min(most, limit)
	}

	least := max(r.GetRequiredBytes(), size)
	if least > most {
		return 0, status.Errorf(codes.OutOfRange, "the request needs at least %d bytes, but the maximum is %d", least, most)
	}
	if least == 0 {
		least = min(blockSize, most)
	}

	return least, nil
}

// place returns the first topology that the request names. The plugin can create volumes for every
// topology.
func (s *controller) place(r *csi.TopologyRequirement) map[string]string {
	for _, t := range append(slices.Clone(r.GetPreferred()), r.GetRequisite()...) {
		return t.GetSegments()
	}
	return s.p.cfg.Topology
}

func (s *controller) knowsMutable(params map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(params)) {
		if !slices.Contains(s.p.cfg.Mutable, key) {
			return status.Errorf(codes.InvalidArgument, "the mutable parameter %q is not known", key)
		}
	}
	return nil
}

// asVolume converts a volume to the type that answers contain.
func asVolume(v stored) *csi.Volume {
	out := &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Capacity, VolumeContext: v.Context}
	if v.Topology != nil {
		out.AccessibleTopology = []*csi.Topology{{Segments: v.Topology}}
	}

	switch {
	case v.Snapshot != "":
		out.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: v.Snapshot}}}
	case v.Clone != "":
		out.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.Clone}}}
	}

	return out
}

// ControllerExpandVolume enlarges the storage of a volume. The node sees the new size at once,
// unless NodeExpandVolume must follow.
func (s *controller) ControllerExpandVolume(_ context.Context, m *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	id := m.GetVolumeId()
	defer s.p.store.lock(id)()

	v, err := s.p.store.get(id)
	if err != nil {
		return nil, err
	}
	if s.p.cfg.Offline && s.p.rec.inUse(id) {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %q is in use, and the plugin expands OFFLINE only", id)
	}
	if v.Capacity, err = s.fit(m.GetCapacityRange(), v.Capacity); err != nil {
		return nil, err
	}

	atNode := s.p.cfg.NodeExpand && !s.p.cfg.GrowsAlone
	if !atNode {
		v.Usable = v.Capacity
	}
	if err := s.p.store.grow(v); err != nil {
		return nil, err
	}

	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Capacity, NodeExpansionRequired: atNode}, nil
}

func (s *controller) ControllerModifyVolume(_ context.Context, m *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	defer s.p.store.lock(m.GetVolumeId())()
	v, err := s.p.store.get(m.GetVolumeId())
	if err == nil {
		err = s.knowsMutable(m.GetMutableParameters())
	}
	if err != nil {
		return nil, err
	}
	if v.Mutable == nil {
		v.Mutable = map[string]string{}
	}

	maps.Copy(v.Mutable, m.GetMutableParameters())
	return &csi.ControllerModifyVolumeResponse{}, s.p.store.make(v)
}

func (s *controller) ControllerGetVolume(_ context.Context, m *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	defer s.p.store.lock(m.GetVolumeId())()
	v, err := s.p.store.get(m.GetVolumeId())
	if err != nil {
		return nil, err
	}

	nodes, err := s.nodes(v.ID)
	st := &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: nodes}
	s.p.addCondition(st, v.ID, atController)

	return &csi.ControllerGetVolumeResponse{Volume: asVolume(v), Status: st}, err
}

// nodes returns the nodes to which a volume is connected. If the plugin does not report such nodes,
// the result is empty.
func (s *controller) nodes(id string) ([]string, error) {
	if !s.p.cfg.PublishedNodes {
		return nil, nil
	}
	a, err := s.p.store.attachments(id)
	return slices.Sorted(maps.Keys(a.Nodes)), err
}

func (s *controller) ListVolumes(_ context.Context, m *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	all, err := s.p.store.all()
	if err != nil {
		return nil, err
	}

	some, next, err := page(s.p.cfg, all, func(v stored) string { return v.ID }, m)
	resp := &csi.ListVolumesResponse{NextToken: next}

	for _, v := range some {
		nodes, nodesErr := s.nodes(v.ID)
		if nodesErr != nil {
			return nil, nodesErr
		}

		st := &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: nodes}
		s.p.addCondition(st, v.ID, atController)
		resp.Entries = append(resp.Entries, &csi.ListVolumesResponse_Entry{Volume: asVolume(v), Status: st})
	}

	return resp, err
}

func (s *controller) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	all, err := s.p.store.all()
	left := s.p.cfg.Storage
	for _, v := range all {
		left -= v.Capacity
	}
	return &csi.GetCapacityResponse{AvailableCapacity: max(left, 0), MaximumVolumeSize: wrapperspb.Int64(s.p.cfg.Storage)}, err
}
