package csitest

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// These constants are the names of calls in the journal.
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
	// Seq is the number of the call in the journal, starting at 1. The numbering continues after a
	// restart of the plugin.
	Seq    int64  `json:"seq"`
	Method string `json:"method"` // name without the service, such as "NodeStageVolume"

	// Volume is the id of the volume. In CreateVolume, it is the id of the new volume. In
	// CreateSnapshot, it is the id of the source volume.
	Volume      string `json:"volume,omitempty"`
	Name        string `json:"name,omitempty"` // name of the object that the call creates
	NodeID      string `json:"node_id,omitempty"`
	StagingPath string `json:"staging_path,omitempty"`

	// TargetPath is the target path of the call. For NodeGetVolumeStats and NodeExpandVolume, it is
	// the field volume_path. For NodeGetVolumeHealth, it is the field volume_publish_path.
	TargetPath string `json:"target_path,omitempty"`
	ReadOnly   bool   `json:"read_only,omitempty"`

	// Capability describes a volume capability in one string: the access mode, "mount" or "block",
	// the file system type and the mount flags. Several capabilities are separated by spaces.
	Capability     string            `json:"capability,omitempty"`
	PublishContext map[string]string `json:"publish_context,omitempty"`
	VolumeContext  map[string]string `json:"volume_context,omitempty"`
	SecretKeys     []string          `json:"secret_keys,omitempty"` // in sorted order; the journal never contains the values of secrets
	SecretSums     map[string]string `json:"secret_sums,omitempty"` // SHA-256 checksums of the values, in hex
	Parameters     map[string]string `json:"parameters,omitempty"`
	Mutable        map[string]string `json:"mutable,omitempty"`     // CSI mutable_parameters
	MountGroup     string            `json:"mount_group,omitempty"` // CSI volume_mount_group

	// Places describes the CSI accessibility_requirements in one string. Equal requirements have
	// equal strings.
	Places string `json:"places,omitempty"`

	// Least and Most are the limits of the requested capacity, in bytes.
	Least int64 `json:"least,omitempty"`
	Most  int64 `json:"most,omitempty"`

	// Snapshot and Group are the ids of a snapshot and of a group snapshot. If the call creates a
	// snapshot or a group, they are the ids of the new objects.
	Snapshot string `json:"snapshot,omitempty"`
	Group    string `json:"group,omitempty"`

	// Sources lists ids of volumes: the volumes of a group snapshot, the source of a clone, or the
	// volume whose snapshots the caller lists. Members lists the ids of the snapshots in a group.
	Sources []string `json:"sources,omitempty"`
	Members []string `json:"members,omitempty"`

	// Entries and Token are the fields max_entries and starting_token of a list call.
	Entries int32  `json:"entries,omitempty"`
	Token   string `json:"token,omitempty"`

	Plugin int       `json:"plugin"`           // process id of the plugin
	Caller int       `json:"caller,omitempty"` // process id at the other end of the socket
	Fault  string    `json:"fault,omitempty"`  // id of the fault that the plugin applied
	Passed []string  `json:"passed,omitempty"` // ids of the faults that match the call but still had to skip calls
	Start  time.Time `json:"start"`

	Result `json:"result,omitzero"`
}

// Result is the outcome of a call. It is the zero value while the call runs. It remains the zero
// value if the plugin is killed during the call.
type Result struct {
	End time.Time `json:"end,omitzero"`
	// Code is the name of the gRPC code as codes.Code prints it, such as "OK".
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`

	// Late is set if the caller had ended or had exceeded its deadline, so that it never received
	// the answer.
	Late bool `json:"late,omitempty"`

	// Given is the context in the answer: the publish context of ControllerPublishVolume, or the
	// volume context of CreateVolume.
	Given map[string]string `json:"given,omitempty"`

	// Mounted is set if the path is still a mount point after NodeUnpublish or NodeUnstage.
	Mounted bool `json:"mounted,omitempty"`

	// Capacity is the new size of the volume, in bytes. NodeRequired is set if the node must
	// continue the expansion.
	Capacity     int64 `json:"capacity,omitempty"`
	NodeRequired bool  `json:"node_required,omitempty"`

	// Next is the field next_token in the answer to a list call.
	Next string `json:"next,omitempty"`

	// Snapshots maps the ids of the snapshots in the answer to whether the answer reports the
	// snapshot as ready.
	Snapshots map[string]bool `json:"snapshots,omitempty"`
}

// Ended reports whether the plugin has answered the call.
func (c Call) Ended() bool { return c.Code != "" }

// OK reports whether the caller received an OK answer in time.
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

// meets reports whether two calls concern the same volume, or the same snapshot or group. The
// source of a new volume does not count.
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

// remakes reports whether the call c makes or needs the state that the other call undoes.
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

// Calls is a list of calls in the order in which they arrived.
type Calls []Call

// Count returns the number of calls of a method.
func (cs Calls) Count(method string) int { return len(cs.Only(method)) }

// Only returns the calls of the given methods.
func (cs Calls) Only(methods ...string) Calls {
	return cs.where(func(c Call) bool { return slices.Contains(methods, c.Method) })
}

// Mutating returns the calls that change something, and omits the calls that only ask for
// information.
func (cs Calls) Mutating() Calls { return cs.where(func(c Call) bool { return Mutates(c.Method) }) }

// Of returns the calls for one volume.
func (cs Calls) Of(volume string) Calls {
	return cs.where(func(c Call) bool { return c.Volume == volume })
}

// Since returns the calls that arrived after the given mark, which comes from Mark.
func (cs Calls) Since(mark int64) Calls { return cs.where(func(c Call) bool { return c.Seq > mark }) }

// Mark returns the number of the last call, for use with Since. It is 0 if there are no calls.
func (cs Calls) Mark() int64 {
	if len(cs) == 0 {
		return 0
	}
	return cs[len(cs)-1].Seq
}

// Methods returns the methods of the calls in the same order.
func (cs Calls) Methods() []string {
	names := make([]string, 0, len(cs))
	for _, c := range cs {
		names = append(names, c.Method)
	}
	return names
}

// String formats each call as one line.
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
