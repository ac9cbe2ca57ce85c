package csiclient

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/volagent/volagent/volmgr/call"
)

// NodeHealth asks the node service about the health of a volume.
func (c nodeCalls) NodeHealth(ctx context.Context, r call.NodeHealthRequest) (call.Health, error) {
	resp, err := invoke(ctx, c.Client, call.NodeHealth, nil, c.node.NodeGetVolumeHealth, &csi.NodeGetVolumeHealthRequest{
		VolumeId: r.ExternalID, VolumePublishPath: r.Path, StagingTargetPath: r.StagingPath,
	})
	return c.health(resp.GetVolumeHealth()), err
}

// StorageHealth asks the node service about its connection to the storage.
func (c nodeCalls) StorageHealth(ctx context.Context, r call.StorageHealthRequest) ([]call.Condition, error) {
	resp, err := invoke(ctx, c.Client, call.NodeStorageHealth, r.Secrets, c.node.NodeGetStorageHealth,
		&csi.NodeGetStorageHealthRequest{Secrets: reveal(r.Secrets)})
	var out []call.Condition
	for _, b := range resp.GetBackendHealth() {
		severity := fmt.Sprintf("status %d", b.GetStatus())
		switch b.GetStatus() {
		case csi.StorageHealthErrorType_STORAGE_DEGRADED:
			severity = call.Degraded
		case csi.StorageHealthErrorType_STORAGE_UNREACHABLE:
			severity = call.Inaccessible
		default: // a later CSI version may define other statuses
		}

		out = append(out, c.entry(severity, b.GetReason(), b.GetMessage()))
	}

	return out, err
}

// ControllerHealth asks the controller about the health of a volume.
func (c controllerCalls) ControllerHealth(ctx context.Context, r call.ControllerHealthRequest) (call.Health, error) {
	resp, err := invoke(ctx, c.Client, call.ControllerHealth, r.Secrets, c.controller.ControllerGetVolumeHealth,
		&csi.ControllerGetVolumeHealthRequest{VolumeId: r.ExternalID, Secrets: reveal(r.Secrets)})
	return c.health(resp.GetVolumeHealth()), err
}

// ListHealth returns one page of the volumes with health problems.
func (c controllerCalls) ListHealth(ctx context.Context, r call.ListHealthRequest) (call.HealthPage, error) {
	resp, err := invoke(ctx, c.Client, call.ListHealth, r.Secrets, c.controller.ControllerListVolumeHealth,
		&csi.ControllerListVolumeHealthRequest{MaxEntries: r.MaxEntries, StartingToken: r.Token, Secrets: reveal(r.Secrets)})
	page := call.HealthPage{Next: resp.GetNextToken()}
	for _, e := range resp.GetEntries() {
		page.Entries = append(page.Entries, c.health(e))
	}
	return page, err
}

func (c *Client) health(h *csi.VolumeHealth) call.Health {
	out := call.Health{ExternalID: h.GetVolumeId()}
	for _, e := range h.GetHealthStatuses() {
		severity := fmt.Sprintf("status %d", e.GetStatus())
		switch e.GetStatus() {
		case csi.VolumeHealthErrorType_DEGRADED:
			severity = call.Degraded
		case csi.VolumeHealthErrorType_INACCESSIBLE:
			severity = call.Inaccessible
		case csi.VolumeHealthErrorType_DATA_LOSS:
			severity = call.DataLoss
		default: // a later CSI version may define other types
		}

		out.Entries = append(out.Entries, c.entry(severity, e.GetReason(), e.GetMessage()))
	}

	return out
}

// entry converts one health problem and makes the plugin's texts safe to show. An empty text
// remains empty.
func (c *Client) entry(severity, reason, message string) call.Condition {
	if message != "" {
		message = c.words(message)
	}
	if reason != "" {
		reason = c.words(reason)
	}
	return call.Condition{Severity: severity, Reason: reason, Message: message}
}

// conditionField is the number of the field that contained a VolumeCondition before CSI 1.13
// removed that type. NodeGetVolumeStatsResponse and both VolumeStatus messages of the controller
// had this field.
const conditionField protowire.Number = 2

// condition reads a VolumeCondition {abnormal = 1, message = 2} from a message of a driver that is
// older than CSI 1.13. The present spec does not define the field, so gRPC keeps it as an unknown
// field. condition returns nil if the field is missing or reports no problem.
func (c *Client) condition(m proto.Message) *call.Condition {
	if m == nil || !m.ProtoReflect().IsValid() {
		return nil
	}

	for rest := []byte(m.ProtoReflect().GetUnknown()); len(rest) > 0; {
		num, typ, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return nil
		}

		rest = rest[n:]
		if num == conditionField && typ == protowire.BytesType {
			body, n := protowire.ConsumeBytes(rest)
			if n < 0 {
				return nil
			}
			abnormal, message := oldCondition(body)
			if !abnormal {
				return nil
			}
			return new(c.entry(call.Abnormal, "", message))
		}
		if n = protowire.ConsumeFieldValue(num, typ, rest); n < 0 {
			return nil
		}

		rest = rest[n:]
	}

	return nil
}

// oldCondition parses an encoded VolumeCondition.
func oldCondition(body []byte) (abnormal bool, message string) {
	for len(body) > 0 {
		num, typ, n := protowire.ConsumeTag(body)
		if n < 0 {
			return abnormal, message
		}

		body = body[n:]
		switch {
		case num == 1 && typ == protowire.VarintType:
			v, n := protowire.ConsumeVarint(body)
			if n < 0 {
				return abnormal, message
			}
			abnormal = v != 0
		case num == 2 && typ == protowire.BytesType:
			v, n := protowire.ConsumeBytes(body)
			if n < 0 {
				return abnormal, message
			}
			message = string(v)
		}

		if n = protowire.ConsumeFieldValue(num, typ, body); n < 0 {
			return abnormal, message
		}

		body = body[n:]
	}

	return abnormal, message
}
