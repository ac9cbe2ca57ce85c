package csitest

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Condition is a simulated problem of a volume, or of the storage to which the node is connected.
// Tests set it with Control.SetConditions.
type Condition struct {
	// Volume is the id of the volume. If it is empty, the problem concerns the storage itself.
	Volume string `json:"volume,omitempty"`

	// Seen is the service that reports the problem: "node" or "controller". If it is empty, both
	// services report it.
	Seen string `json:"seen,omitempty"`

	// Status is a number of csi.VolumeHealthErrorType or csi.StorageHealthErrorType. It may also be
	// a number that the spec does not define.
	Status  int32  `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// These constants are the services that can report a Condition.
const (
	atNode       = "node"
	atController = "controller"
)

// conditions returns the simulated problems of a volume, or of the storage if volume is empty.
func (p *Plugin) conditions(volume, at string) ([]Condition, error) {
	f, err := p.Faults().read()
	return slices.DeleteFunc(f.Conditions, func(c Condition) bool {
		return c.Volume != volume || c.Seen != "" && c.Seen != at
	}), err
}

// health returns the health of a volume. It fails if the volume does not exist.
func (p *Plugin) health(id, at string) (*csi.VolumeHealth, error) {
	defer p.store.lock(id)()
	if _, err := p.store.get(id); err != nil {
		return nil, err
	}

	all, err := p.conditions(id, at)
	out := &csi.VolumeHealth{VolumeId: id}

	for _, c := range all {
		out.HealthStatuses = append(out.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{
			Status: csi.VolumeHealthErrorType(c.Status), Reason: c.Reason, Message: c.Message})
	}
	return out, err
}

func (s *node) NodeGetVolumeHealth(_ context.Context, m *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	h, err := s.p.health(m.GetVolumeId(), atNode)
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: h}, err
}

func (s *node) NodeGetStorageHealth(context.Context, *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	all, err := s.p.conditions("", atNode)
	resp := &csi.NodeGetStorageHealthResponse{}
	for _, c := range all {
		resp.BackendHealth = append(resp.BackendHealth, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{
			Status: csi.StorageHealthErrorType(c.Status), Reason: c.Reason, Message: c.Message})
	}
	return resp, err
}

func (s *controller) ControllerGetVolumeHealth(_ context.Context, m *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	h, err := s.p.health(m.GetVolumeId(), atController)
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: h}, err
}

// ControllerListVolumeHealth lists the volumes with problems.
func (s *controller) ControllerListVolumeHealth(_ context.Context, m *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	f, err := s.p.Faults().read()
	if err != nil {
		return nil, err
	}

	var ids []string
	for _, c := range f.Conditions {
		if c.Volume != "" && c.Seen != atNode && !slices.Contains(ids, c.Volume) {
			ids = append(ids, c.Volume)
		}
	}

	some, next, err := page(s.p.cfg, ids, func(id string) string { return id }, m)
	resp := &csi.ControllerListVolumeHealthResponse{NextToken: next}

	for _, id := range some {
		h, err := s.p.health(id, atController)
		switch {
		// The volume has just been deleted, so it has no problems.
		case status.Code(err) == codes.NotFound:
		case err != nil:
			return nil, err
		default:
			resp.Entries = append(resp.Entries, h)
		}
	}

	return resp, err
}

// conditionField is the number of the field that contained a VolumeCondition before CSI 1.13. A
// VolumeCondition has the field abnormal with number 1 and the field message with number 2.
const conditionField protowire.Number = 2

// addCondition adds a VolumeCondition to an answer, if the plugin imitates a plugin that is older
// than CSI 1.13.
func (p *Plugin) addCondition(m proto.Message, volume, at string) {
	if !p.cfg.Condition {
		return
	}

	all, err := p.conditions(volume, at)
	var body []byte

	switch {
	case err != nil: // the next call reports that the control file is invalid
	case len(all) > 0:
		body = protowire.AppendVarint(protowire.AppendTag(body, 1, protowire.VarintType), 1)
		body = protowire.AppendString(protowire.AppendTag(body, 2, protowire.BytesType), all[0].Message)
	default:
		body = protowire.AppendString(protowire.AppendTag(body, 2, protowire.BytesType), "all is well")
	}

	field := protowire.AppendTag(nil, conditionField, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendBytes(field, body))
}
