package task

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// local contains the parts of a request that do not travel in a task: the executor reads them from the
// definition of the volume, or resolves them itself.
type local struct {
	volume  volume.Volume
	secrets call.Secrets
	nodeID  string
}

// form says how the request and the answer of one call travel in a task.
type form struct {
	pack   func(request any) ([]byte, error)
	unpack func(raw []byte, k local) (any, error)
	answer func(raw []byte) (any, error)

	// silent is set if the answer has no content.
	silent bool
}

// formOf returns the form of a call. The function fill sets the parts of a request that do not travel
// in the task. The requester calls it with empty values.
func formOf[Q call.Request[A], A any](fill func(q *Q, k local)) form {
	var none A
	_, silent := any(none).(call.Nothing)
	return form{
		silent: silent,
		pack: func(request any) ([]byte, error) {
			q, ok := request.(Q)
			if !ok {
				return nil, fmt.Errorf("the request has the type %T", request)
			}
			fill(&q, local{})
			return json.Marshal(q)
		},
		unpack: func(raw []byte, k local) (any, error) {
			var q Q
			err := json.Unmarshal(raw, &q)
			fill(&q, k)
			return q, err
		},
		answer: func(raw []byte) (any, error) {
			var a A
			err := json.Unmarshal(raw, &a)
			return a, err
		},
	}
}

// forms contains the calls that hosts make for each other. Each of them is announced in
// calls/<volume>, and can be repeated.
var forms = map[call.Method]form{
	call.ControllerPublish: formOf(func(q *call.ControllerPublishRequest, k local) {
		q.ExternalID, q.NodeID, q.VolumeContext, q.Secrets = k.volume.ExternalID, k.nodeID, k.volume.Context, k.secrets
	}),
	call.ControllerUnpublish: formOf(func(q *call.ControllerUnpublishRequest, k local) {
		q.ExternalID, q.NodeID, q.Secrets = k.volume.ExternalID, k.nodeID, k.secrets
	}),
	call.CreateVolume: formOf(func(q *call.CreateVolumeRequest, k local) { q.Name, q.Secrets = k.volume.Name, k.secrets }),
	call.DeleteVolume: formOf(func(q *call.DeleteVolumeRequest, k local) { q.ExternalID, q.Secrets = k.volume.ExternalID, k.secrets }),
	call.ControllerExpand: formOf(func(q *call.ExpandRequest, k local) {
		q.ExternalID, q.Secrets = k.volume.ExternalID, k.secrets
	}),
	call.CreateSnapshot:   formOf(func(q *call.SnapshotRequest, k local) { q.SourceID, q.Secrets = k.volume.ExternalID, k.secrets }),
	call.ControllerModify: formOf(func(q *call.ModifyRequest, k local) { q.ExternalID, q.Secrets = k.volume.ExternalID, k.secrets }),
}

// attaches reports whether a call changes an attachment. Such a call needs the id of a node, because
// an empty id means all nodes.
func attaches(m call.Method) bool {
	return m == call.ControllerPublish || m == call.ControllerUnpublish
}

// request returns the request of a task's call for the plugin of this host.
func request(t shared.Task, v volume.Volume, secrets call.Secrets) (any, error) {
	f, ok := forms[t.Call]
	switch {
	case !ok:
		return nil, fmt.Errorf("this release makes no call %s for other hosts", t.Call)
	case v.ID == "":
		return nil, errors.New("the cluster has no such volume")
	case attaches(t.Call) && t.NodeID == "":
		return nil, errors.New("the task names no node")
	case t.Call == call.CreateVolume && v.Name == "":
		return nil, errors.New("the definition has no name for the plugin")
	case t.Call != call.CreateVolume && v.ExternalID == "":
		return nil, errors.New("the volume has no storage")
	}

	r, err := f.unpack(t.Request, local{v, secrets, t.NodeID})
	if err != nil {
		return nil, fmt.Errorf("cannot read the request of the task: %w", err)
	}
	return r, nil
}
