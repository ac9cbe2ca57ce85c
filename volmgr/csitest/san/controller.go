package san

import (
	"cmp"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// attachmentKey is the key of the publish context that names the attachment.
const attachmentKey = "san/attachment"

// controller answers one call to the controller service of any driver.
type controller struct {
	csi.UnimplementedControllerServer
	*fabric
	call *call
}

func (c *controller) CreateVolume(_ context.Context, m *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if m.GetName() == "" || len(m.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "a volume needs a name and capabilities")
	}
	c.admin.Lock()
	defer c.admin.Unlock()

	least, most := m.GetCapacityRange().GetRequiredBytes(), m.GetCapacityRange().GetLimitBytes()
	source := m.GetVolumeContentSource().GetSnapshot().GetSnapshotId()
	if m.GetVolumeContentSource() != nil && c.snapshots[source] == nil {
		return nil, status.Errorf(codes.NotFound, "snapshot %q does not exist", source)
	}

	d := c.disks[volumeID(m.GetName())]
	if d == nil {
		var topology map[string]string
		if wish := m.GetAccessibilityRequirements(); wish != nil {
			topology = first(append(wish.GetPreferred(), wish.GetRequisite()...)).GetSegments()
		}
		if least == 0 {
			least = cmp.Or(most, defaultSize)
		}

		var err error
		if d, err = c.make(&Disk{ID: volumeID(m.GetName()), Name: m.GetName(), Size: least, Topology: topology}); err != nil {
			return nil, err
		}
		if source != "" {
			if err := c.fill(d, source); err != nil {
				return nil, err
			}
		}
	}
	if d.Name != m.GetName() || d.Size < least || (most > 0 && d.Size > most) {
		return nil, status.Errorf(codes.AlreadyExists, "volume %q exists with a size of %d bytes", d.ID, d.Size)
	}

	v := toVolume(d)
	v.ContentSource = m.GetVolumeContentSource()
	return &csi.CreateVolumeResponse{Volume: v}, nil
}

// first returns the first of several topologies, or nil.
func first(all []*csi.Topology) *csi.Topology {
	if len(all) == 0 {
		return nil
	}
	return all[0]
}

// fill replaces the files of a new disk with those of a snapshot.
func (c *controller) fill(d *Disk, source string) error {
	base := filepath.Dir(d.Dir)
	if err := removeTree(base); err != nil {
		return err
	}
	if err := copyTree(c.snapshots[source].dir, base); err != nil {
		return err
	}
	return resizeFile(d.Image, d.Size)
}

func toVolume(d *Disk) *csi.Volume {
	v := &csi.Volume{VolumeId: d.ID, CapacityBytes: d.Size}
	if d.Topology != nil {
		v.AccessibleTopology = []*csi.Topology{{Segments: d.Topology}}
	}
	return v
}

func (c *controller) DeleteVolume(_ context.Context, m *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if m.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "no volume id is given")
	}
	c.admin.Lock()
	defer c.admin.Unlock()
	return &csi.DeleteVolumeResponse{}, c.remove(m.GetVolumeId())
}

func (c *controller) ControllerPublishVolume(_ context.Context, m *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if m.GetVolumeId() == "" || m.GetNodeId() == "" || m.GetVolumeCapability() == nil {
		return nil, status.Error(codes.InvalidArgument, "attaching needs a volume id, a node id and a capability")
	}
	c.admin.Lock()
	defer c.admin.Unlock()

	node, ok := c.node(m.GetNodeId())
	if !ok {
		return nil, status.Errorf(codes.NotFound, "node %q is unknown", m.GetNodeId())
	}
	if d := c.disks[m.GetVolumeId()]; d != nil && !reachable(d, node) {
		return nil, status.Errorf(codes.InvalidArgument, "volume %q is not accessible from %q", d.ID, m.GetNodeId())
	}

	a, err := c.attach(wanted{volume: m.GetVolumeId(), node: m.GetNodeId(), mode: m.GetVolumeCapability().GetAccessMode().GetMode(),
		readOnly: m.GetReadonly(), made: true}, c.call.cause())
	if err != nil {
		return nil, err
	}

	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{attachmentKey: a.id}}, nil
}

// reachable reports whether the topology of a disk contains a node.
func reachable(d *Disk, n node) bool {
	for key, value := range d.Topology {
		if n.Topology[key] != value {
			return false
		}
	}
	return true
}

// ControllerUnpublishVolume ends attachments. A node that the SAN does not know is an error, because
// the SAN cannot say that such a node is cut off.
func (c *controller) ControllerUnpublishVolume(_ context.Context, m *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if m.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "no volume id is given")
	}
	c.admin.Lock()
	defer c.admin.Unlock()

	if _, ok := c.node(m.GetNodeId()); !ok && m.GetNodeId() != "" {
		return nil, status.Errorf(codes.NotFound, "node %q is unknown", m.GetNodeId())
	}
	if c.lie(m.GetNodeId()) {
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}

	c.detach(m.GetVolumeId(), m.GetNodeId(), c.call.cause())
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (c *controller) node(id string) (node, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.nodes[id]
	return n, ok
}

func (c *controller) ValidateVolumeCapabilities(_ context.Context, m *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	c.admin.Lock()
	defer c.admin.Unlock()
	if c.disks[m.GetVolumeId()] == nil {
		return nil, status.Errorf(codes.NotFound, "volume %q does not exist", m.GetVolumeId())
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: m.GetVolumeContext(), VolumeCapabilities: m.GetVolumeCapabilities(), Parameters: m.GetParameters(),
	}}, nil
}

func (c *controller) ControllerExpandVolume(_ context.Context, m *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	c.admin.Lock()
	defer c.admin.Unlock()
	size, err := c.grow(m.GetVolumeId(), m.GetCapacityRange().GetRequiredBytes())
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: true}, err
}

func (c *controller) ListVolumes(_ context.Context, m *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	resp := &csi.ListVolumesResponse{}
	all := c.Disks()
	some, next, err := page(all, m)
	if err != nil {
		return nil, err
	}

	resp.NextToken = next
	for _, d := range some {
		resp.Entries = append(resp.Entries, &csi.ListVolumesResponse_Entry{Volume: toVolume(&d),
			Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: c.published(d.ID)}})
	}

	return resp, nil
}

func (c *controller) ControllerGetVolume(_ context.Context, m *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	for _, d := range c.Disks() {
		if d.ID == m.GetVolumeId() {
			return &csi.ControllerGetVolumeResponse{Volume: toVolume(&d),
				Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: c.published(d.ID)}}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "volume %q does not exist", m.GetVolumeId())
}

// published returns the nodes to which a volume is attached.
func (c *controller) published(volume string) []string {
	var nodes []string
	for _, a := range c.attached(func(a *attachment) bool { return a.volume == volume }) {
		nodes = append(nodes, a.node)
	}
	return nodes
}

// page returns a part of a list. A token is the index of the first entry.
func page[T any](all []T, m interface {
	GetMaxEntries() int32
	GetStartingToken() string
}) (some []T, next string, err error) {
	begin := 0
	if token := m.GetStartingToken(); token != "" {
		if begin, err = strconv.Atoi(token); err != nil || begin < 0 || begin > len(all) {
			return nil, "", status.Errorf(codes.Aborted, "the starting_token %q is invalid", token)
		}
	}

	some = all[begin:]
	if size := int(m.GetMaxEntries()); size > 0 && size < len(some) {
		return some[:size], strconv.Itoa(begin + size), nil
	}

	return some, "", nil
}

func (c *controller) CreateSnapshot(_ context.Context, m *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	c.admin.Lock()
	defer c.admin.Unlock()

	id := "snap-" + volumeID(m.GetName())
	if old := c.snapshots[id]; old != nil {
		if old.info.GetSourceVolumeId() != m.GetSourceVolumeId() {
			return nil, status.Errorf(codes.AlreadyExists, "snapshot %q is of another volume", id)
		}
		return &csi.CreateSnapshotResponse{Snapshot: old.info}, nil
	}

	d := c.disks[m.GetSourceVolumeId()]
	if d == nil {
		return nil, status.Errorf(codes.NotFound, "volume %q does not exist", m.GetSourceVolumeId())
	}

	one := &snapshot{dir: filepath.Join(c.dir, "snapshots", id), info: &csi.Snapshot{SnapshotId: id, SourceVolumeId: d.ID,
		SizeBytes: d.Size, ReadyToUse: true, CreationTime: timestamppb.Now()}}
	if err := os.MkdirAll(filepath.Dir(one.dir), 0o755); err != nil {
		return nil, err
	}
	if err := copyTree(filepath.Dir(d.Dir), one.dir); err != nil {
		return nil, err
	}

	c.snapshots[id] = one
	return &csi.CreateSnapshotResponse{Snapshot: one.info}, nil
}

func (c *controller) DeleteSnapshot(_ context.Context, m *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	c.admin.Lock()
	defer c.admin.Unlock()

	one := c.snapshots[m.GetSnapshotId()]
	if one == nil {
		return &csi.DeleteSnapshotResponse{}, nil
	}

	delete(c.snapshots, m.GetSnapshotId())
	return &csi.DeleteSnapshotResponse{}, removeTree(one.dir)
}

func (c *controller) ListSnapshots(_ context.Context, m *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	c.admin.Lock()
	defer c.admin.Unlock()

	var all []*csi.Snapshot
	for _, id := range slices.Sorted(maps.Keys(c.snapshots)) {
		one := c.snapshots[id].info
		other := m.GetSnapshotId() != "" && m.GetSnapshotId() != id
		foreign := m.GetSourceVolumeId() != "" && m.GetSourceVolumeId() != one.GetSourceVolumeId()
		if !other && !foreign {
			all = append(all, one)
		}
	}

	some, next, err := page(all, m)
	if err != nil {
		return nil, err
	}

	resp := &csi.ListSnapshotsResponse{NextToken: next}
	for _, one := range some {
		resp.Entries = append(resp.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: one})
	}

	return resp, nil
}
