package csitest

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// These are the names of calls in the journal.
const (
	Probe                = "Probe"
	ListVolumes          = "ListVolumes"
	GetCapacity          = "GetCapacity"
	CreateVolume         = "CreateVolume"
	DeleteVolume         = "DeleteVolume"
	ControllerPublish    = "ControllerPublishVolume"
	ControllerUnpublish  = "ControllerUnpublishVolume"
	ValidateCapabilities = "ValidateVolumeCapabilities"
	NodeStage            = "NodeStageVolume"
	NodeUnstage          = "NodeUnstageVolume"
	NodePublish          = "NodePublishVolume"
	NodeUnpublish        = "NodeUnpublishVolume"
	NodeStats            = "NodeGetVolumeStats"
	NodeInfo             = "NodeGetInfo"
	ControllerExpand     = "ControllerExpandVolume"
	ControllerModify     = "ControllerModifyVolume"
	ControllerGetVolume  = "ControllerGetVolume"
	NodeExpand           = "NodeExpandVolume"
	CreateSnapshot       = "CreateSnapshot"
	DeleteSnapshot       = "DeleteSnapshot"
	GetSnapshot          = "GetSnapshot"
	ListSnapshots        = "ListSnapshots"
	CreateGroupSnapshot  = "CreateVolumeGroupSnapshot"
	DeleteGroupSnapshot  = "DeleteVolumeGroupSnapshot"
	GetGroupSnapshot     = "GetVolumeGroupSnapshot"
	NodeHealth           = "NodeGetVolumeHealth"
	NodeStorageHealth    = "NodeGetStorageHealth"
	ControllerHealth     = "ControllerGetVolumeHealth"
	ListHealth           = "ControllerListVolumeHealth"
	groupAbilities       = "GroupControllerGetCapabilities"
	pluginInfo           = "GetPluginInfo"
	pluginCapabilities   = "GetPluginCapabilities"
	controllerAbilities  = "ControllerGetCapabilities"
	nodeAbilities        = "NodeGetCapabilities"
	okCode               = "OK"
	notFoundCode         = "NotFound"
)

// Call is one call that the plugin received.
type Call struct {
	// Seq is the number of the call in the journal, from 1. The numbers continue after a restart of
	// the plugin.
	Seq    int64  `json:"seq"`
	Method string `json:"method"` // without the name of its service, such as "NodeStageVolume"

	// Volume is the id of the volume. In CreateVolume it is the id of the new volume, and in
	// CreateSnapshot the id of the source volume.
	Volume      string `json:"volume,omitempty"`
	Name        string `json:"name,omitempty"` // the name of a created object
	NodeID      string `json:"node_id,omitempty"`
	StagingPath string `json:"staging_path,omitempty"`

	// TargetPath is the target path of the call. In NodeGetVolumeStats and NodeExpandVolume it is
	// volume_path, and in NodeGetVolumeHealth it is volume_publish_path.
	TargetPath string `json:"target_path,omitempty"`
	ReadOnly   bool   `json:"read_only,omitempty"`

	// Capability describes a capability in one string: the access mode, "mount" or "block", the
	// file system type and the mount flags. Several capabilities are separated by spaces.
	Capability     string            `json:"capability,omitempty"`
	PublishContext map[string]string `json:"publish_context,omitempty"`
	VolumeContext  map[string]string `json:"volume_context,omitempty"`
	SecretKeys     []string          `json:"secret_keys,omitempty"` // sorted; the journal never contains the values
	SecretSums     map[string]string `json:"secret_sums,omitempty"` // the SHA-256 of the values, in hex
	Parameters     map[string]string `json:"parameters,omitempty"`
	Mutable        map[string]string `json:"mutable,omitempty"`     // mutable_parameters
	MountGroup     string            `json:"mount_group,omitempty"` // volume_mount_group

	// Places describes the accessibility_requirements in one string. Equal requirements have equal
	// strings.
	Places string `json:"places,omitempty"`

	// Least and Most are the limits of the requested capacity, in bytes.
	Least int64 `json:"least,omitempty"`
	Most  int64 `json:"most,omitempty"`

	// Snapshot and Group are the ids of a snapshot and of a group snapshot. In a call that creates
	// one of them, it is the id of the new object.
	Snapshot string `json:"snapshot,omitempty"`
	Group    string `json:"group,omitempty"`

	// Sources are the ids of volumes: those of a group snapshot, the source of a clone, or the
	// volume whose snapshots the caller lists. Members are the ids of the snapshots in a group.
	Sources []string `json:"sources,omitempty"`
	Members []string `json:"members,omitempty"`

	// Entries and Token are max_entries and starting_token of a list call.
	Entries int32  `json:"entries,omitempty"`
	Token   string `json:"token,omitempty"`

	Plugin int       `json:"plugin"`           // the plugin's process id
	Caller int       `json:"caller,omitempty"` // the process id at the other end of the socket
	Fault  string    `json:"fault,omitempty"`  // the id of the fault that the plugin applied
	Passed []string  `json:"passed,omitempty"` // the ids of the faults that match the call but skipped it
	Start  time.Time `json:"start"`

	Result `json:"result,omitzero"`
}

// Result is the outcome of a call. It is the zero value while the call runs. It stays zero if the
// plugin is killed during the call.
type Result struct {
	End time.Time `json:"end,omitzero"`
	// Name of the gRPC code, such as "OK", as codes.Code prints it.
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`

	// Late means that the caller had ended or passed its deadline, so that it never saw the answer.
	Late bool `json:"late,omitempty"`

	// Given is the context in the answer. It is the publish context of ControllerPublishVolume or
	// the volume context of CreateVolume.
	Given map[string]string `json:"given,omitempty"`

	// Mounted means that the path is still a mount point after NodeUnpublish or NodeUnstage.
	Mounted bool `json:"mounted,omitempty"`

	// Capacity is the new size of the volume, in bytes. NodeRequired means that the node must
	// continue the expansion.
	Capacity     int64 `json:"capacity,omitempty"`
	NodeRequired bool  `json:"node_required,omitempty"`

	// Next is the next_token of a list call.
	Next string `json:"next,omitempty"`

	// Snapshots contains the ids of the snapshots in the answer. The value is true if the snapshot
	// is ready according to the answer.
	Snapshots map[string]bool `json:"snapshots,omitempty"`
}

// Ended reports whether the plugin has answered the call.
func (c Call) Ended() bool { return c.Code != "" }

// OK reports whether the caller received the answer OK in time.
func (c Call) OK() bool { return c.Code == okCode && !c.Late }

// String formats the call as one line for the log of a test.
func (c Call) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s", c.Seq, c.Method)

	for _, part := range []struct{ label, value string }{
		{"", c.Volume}, {"snapshot=", c.Snapshot}, {"group=", c.Group}, {"node=", c.NodeID}, {"staging=", c.StagingPath}, {"target=", c.TargetPath}, {"fault=", c.Fault},
	} {
		if part.value != "" {
			b.WriteString(" " + part.label + part.value)
		}
	}

	if c.ReadOnly {
		b.WriteString(" ro")
	}

	switch {
	case !c.Ended():
		b.WriteString(" → no answer")
	default:
		fmt.Fprintf(&b, " → %s in %s", c.Code, c.End.Sub(c.Start).Round(time.Microsecond))
	}

	if c.Message != "" {
		fmt.Fprintf(&b, " %q", c.Message)
	}
	if c.Late {
		b.WriteString(" (too late for the caller)")
	}

	return b.String()
}

// meets reports whether two calls concern the same volume or the same snapshot. The source of a new
// volume does not count.
func (c Call) meets(other Call) bool {
	about := func(one Call) []string {
		var ids []string
		if one.Volume != "" {
			ids = append(ids, one.Volume)
		}

		switch one.Method {
		case CreateSnapshot, DeleteSnapshot, GetSnapshot:
			ids = append(ids, snapshotLock(one.Snapshot))
		case CreateGroupSnapshot, DeleteGroupSnapshot, GetGroupSnapshot:
			ids = append(append(ids, snapshotLock("group "+one.Group)), one.Sources...)
		}

		return ids
	}

	mine := about(c)
	return slices.ContainsFunc(about(other), func(id string) bool { return slices.Contains(mine, id) })
}

// remakes reports whether a call creates or needs the result that the other call undoes.
func (c Call) remakes(other Call) bool {
	if c.Volume == "" || c.Volume != other.Volume {
		return false
	}

	switch other.Method {
	case NodeUnpublish:
		return c.Method == NodePublish && c.TargetPath == other.TargetPath
	case NodeUnstage:
		return c.Method == NodePublish || c.Method == NodeStage
	case ControllerUnpublish:
		return c.Method == ControllerPublish && (other.NodeID == "" || c.NodeID == other.NodeID)
	default:
		return false
	}
}

// Calls is a list of calls in the order of their arrival.
type Calls []Call

// Count returns the number of calls of a method.
func (cs Calls) Count(method string) int { return len(cs.Only(method)) }

// Only returns the calls of the given methods.
func (cs Calls) Only(methods ...string) Calls {
	return cs.where(func(c Call) bool { return slices.Contains(methods, c.Method) })
}

// Mutating returns the calls that change something. It omits the calls that only ask.
func (cs Calls) Mutating() Calls { return cs.where(func(c Call) bool { return Mutates(c.Method) }) }

// Of returns the calls for one volume.
func (cs Calls) Of(volume string) Calls {
	return cs.where(func(c Call) bool { return c.Volume == volume })
}

// Since returns the calls that arrived after Mark returned the given mark.
func (cs Calls) Since(mark int64) Calls { return cs.where(func(c Call) bool { return c.Seq > mark }) }

// Mark returns a mark of the last call, for Since. It is 0 if there are no calls.
func (cs Calls) Mark() int64 {
	if len(cs) == 0 {
		return 0
	}
	return cs[len(cs)-1].Seq
}

// Methods returns the methods of the calls in their order.
func (cs Calls) Methods() []string {
	names := make([]string, 0, len(cs))
	for _, c := range cs {
		names = append(names, c.Method)
	}
	return names
}

// String formats the calls, each as one line.
func (cs Calls) String() string {
	var b strings.Builder
	for _, c := range cs {
		b.WriteString(c.String() + "\n")
	}
	return b.String()
}

func (cs Calls) where(keep func(Call) bool) Calls {
	var kept Calls
	for _, c := range cs {
		if keep(c) {
			kept = append(kept, c)
		}
	}
	return kept
}
