package call

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// methods lists all calls. A call has a subject if it may take effect after its deadline, at one of
// several controllers. The subject is the volume, snapshot or group of snapshots that the call
// changes. It is written as the object's id at the plugin. A new object has no id yet, so its name
// or its source is the subject.
var methods = table(
	late(Controller, func(r ControllerPublishRequest) string { return r.ExternalID }),
	late(Controller, func(r ControllerUnpublishRequest) string { return r.ExternalID }),
	late(Controller, func(r ExpandRequest) string { return r.ExternalID }),
	late(Controller, func(r ModifyRequest) string { return r.ExternalID }),
	late(Controller, func(r CreateVolumeRequest) string { return r.Name }),
	late(Controller, func(r DeleteVolumeRequest) string { return r.ExternalID }),
	late(Controller, func(r SnapshotRequest) string { return r.SourceID }),
	late(Controller, func(r DeleteSnapshotRequest) string { return r.ID }),
	late(Controller, func(r GroupSnapshotRequest) string { return r.SourceIDs[0] }),
	late(Controller, func(r DeleteGroupSnapshotRequest) string { return r.ID }),

	prompt[GetVolumeRequest](Controller),
	prompt[ListVolumesRequest](Controller),
	prompt[CapacityRequest](Controller),
	prompt[ValidateRequest](Controller),
	prompt[ListSnapshotsRequest](Controller),
	prompt[GetSnapshotRequest](Controller),
	prompt[GetGroupSnapshotRequest](Controller),
	prompt[ControllerHealthRequest](Controller),
	prompt[ListHealthRequest](Controller),

	prompt[NodeStageRequest](Node),
	prompt[NodeUnstageRequest](Node),
	prompt[NodePublishRequest](Node),
	prompt[NodeUnpublishRequest](Node),
	prompt[NodeExpandRequest](Node),
	prompt[StatsRequest](Node),
	prompt[NodeHealthRequest](Node),
	prompt[StorageHealthRequest](Node),
)

// These methods connect each request type to the type of its answer and to the name of its call.

func (ControllerPublishRequest) asks(map[string]string) Method { return ControllerPublish }
func (ControllerUnpublishRequest) asks(Nothing) Method         { return ControllerUnpublish }
func (ExpandRequest) asks(ExpandResult) Method                 { return ControllerExpand }
func (ModifyRequest) asks(Nothing) Method                      { return ControllerModify }
func (CreateVolumeRequest) asks(CreateVolumeResult) Method     { return CreateVolume }
func (DeleteVolumeRequest) asks(Nothing) Method                { return DeleteVolume }
func (SnapshotRequest) asks(Snapshot) Method                   { return CreateSnapshot }
func (DeleteSnapshotRequest) asks(Nothing) Method              { return DeleteSnapshot }
func (GroupSnapshotRequest) asks(GroupSnapshot) Method         { return CreateGroupSnapshot }
func (DeleteGroupSnapshotRequest) asks(Nothing) Method         { return DeleteGroupSnapshot }
func (GetVolumeRequest) asks(StorageVolume) Method             { return ControllerGetVolume }
func (ListVolumesRequest) asks(VolumePage) Method              { return ListVolumes }
func (CapacityRequest) asks(CapacityResult) Method             { return GetCapacity }
func (ValidateRequest) asks(Nothing) Method                    { return ValidateCapabilities }
func (ListSnapshotsRequest) asks(SnapshotPage) Method          { return ListSnapshots }
func (GetSnapshotRequest) asks(Snapshot) Method                { return GetSnapshot }
func (GetGroupSnapshotRequest) asks(GroupSnapshot) Method      { return GetGroupSnapshot }
func (ControllerHealthRequest) asks(Health) Method             { return ControllerHealth }
func (ListHealthRequest) asks(HealthPage) Method               { return ListHealth }
func (NodeStageRequest) asks(Nothing) Method                   { return NodeStage }
func (NodeUnstageRequest) asks(Nothing) Method                 { return NodeUnstage }
func (NodePublishRequest) asks(Nothing) Method                 { return NodePublish }
func (NodeUnpublishRequest) asks(Nothing) Method               { return NodeUnpublish }
func (NodeExpandRequest) asks(int64) Method                    { return NodeExpand }
func (StatsRequest) asks(Stats) Method                         { return NodeStats }
func (NodeHealthRequest) asks(Health) Method                   { return NodeHealth }
func (StorageHealthRequest) asks([]Condition) Method           { return NodeStorageHealth }

// row describes one call in the table methods.
type row struct {
	method  Method
	service Service
	subject func(request any) string
}

// late returns the row of a call that has a subject, because it may take effect after its deadline.
func late[Q Request[A], A any](s Service, subject func(Q) string) row {
	r := prompt[Q](s)
	r.subject = func(request any) string { return subject(request.(Q)) }
	return r
}

// prompt returns the row of a call that has no subject.
func prompt[Q Request[A], A any](s Service) row {
	return row{method: methodOf[Q](), service: s, subject: func(any) string { return "" }}
}

func methodOf[Q Request[A], A any]() Method {
	var request Q
	var answer A
	return request.asks(answer)
}

func table(rows ...row) map[Method]row {
	by := map[Method]row{}
	for _, r := range rows {
		by[r.method] = r
	}

	return by
}

// Nothing is the type of the answer of a call that returns no data.
type Nothing struct{}

// Request is the request of one call. A is the type of the answer.
type Request[A any] interface{ asks(answer A) Method }

// Caller sends calls to a plugin. Its errors are *volume.CallError. Other packages use Do and Run
// instead of the method Call, because Do and Run check the types of a request and its answer.
type Caller interface {
	Call(ctx context.Context, m Method, request any) (answer any, err error)
}

// Do makes one call and returns the answer.
func Do[A any](ctx context.Context, to Caller, r Request[A]) (A, error) {
	var none A
	got, err := to.Call(ctx, r.asks(none), r)
	answer, _ := got.(A) // a call that was not sent has no answer

	return answer, err
}

// Run makes one call whose answer contains no data.
func Run(ctx context.Context, to Caller, r Request[Nothing]) error {
	_, err := Do(ctx, to, r)
	return err
}

// Handlers implements Caller with one function for each call.
type Handlers map[Method]func(ctx context.Context, request any) (any, error)

// Call implements Caller.
func (h Handlers) Call(ctx context.Context, m Method, request any) (any, error) {
	handle, ok := h[m]
	if !ok {
		return nil, fmt.Errorf("cannot call %s: it has no handler", m)
	}
	return handle(ctx, request)
}

// HandleDo sets the function that answers one kind of call.
func HandleDo[Q Request[A], A any](h Handlers, handle func(context.Context, Q) (A, error)) {
	h[methodOf[Q]()] = func(ctx context.Context, request any) (any, error) { return handle(ctx, request.(Q)) }
}

// HandleRun sets the function that handles one kind of call whose answer contains no data.
func HandleRun[Q Request[Nothing]](h Handlers, handle func(context.Context, Q) error) {
	HandleDo(h, func(ctx context.Context, r Q) (Nothing, error) { return Nothing{}, handle(ctx, r) })
}

// Methods returns all methods, in alphabetical order.
func Methods() []Method { return slices.Sorted(maps.Keys(methods)) }

// Service returns the service that answers the method. For an unknown method, it returns Node.
func (k Method) Service() Service {
	if r, ok := methods[k]; ok {
		return r.service
	}
	return Node
}

// Subject returns the subject of a request that may take effect after its deadline. Later calls
// with the same subject must go to the same controller. For all other requests, Subject returns "".
func (k Method) Subject(request any) string {
	if r, ok := methods[k]; ok {
		return r.subject(request)
	}
	return ""
}
