package call

import "time"

// The types in this file contain all fields that CSI may need. The client omits those fields that
// the plugin's capabilities do not allow.

// ControllerPublishRequest asks the plugin to connect a volume to a node (CSI
// ControllerPublishVolume).
type ControllerPublishRequest struct {
	ExternalID    string
	NodeID        string
	Capability    Capability
	FSType        string
	MountFlags    []string
	MountGroup    string // numeric group id; sent only to a plugin with VOLUME_MOUNT_GROUP
	ReadOnly      bool   // sent only to a plugin with PUBLISH_READONLY
	VolumeContext map[string]string
	Secrets       Secrets
}

// ControllerUnpublishRequest undoes a ControllerPublishRequest.
type ControllerUnpublishRequest struct {
	ExternalID string
	NodeID     string
	Secrets    Secrets
}

// NodeStageRequest asks the plugin to mount a volume at its staging path (CSI NodeStageVolume). The
// staging path must be an existing directory.
type NodeStageRequest struct {
	ExternalID  string
	StagingPath string
	Capability  Capability
	FSType      string
	MountFlags  []string
	MountGroup  string // numeric group id; sent only to a plugin with VOLUME_MOUNT_GROUP

	// PublishContext is the result of ControllerPublishVolume. It is empty for a plugin that has no
	// such call.
	PublishContext map[string]string
	VolumeContext  map[string]string
	Secrets        Secrets
}

// NodePublishRequest asks the plugin to mount a volume at the target of one alloc (CSI
// NodePublishVolume). The plugin creates the target. Its parent directory must exist.
type NodePublishRequest struct {
	ExternalID     string
	StagingPath    string // empty if the plugin has no NodeStageVolume
	TargetPath     string
	Capability     Capability
	FSType         string
	MountFlags     []string
	MountGroup     string // numeric group id; sent only to a plugin with VOLUME_MOUNT_GROUP
	ReadOnly       bool
	PublishContext map[string]string
	VolumeContext  map[string]string
	Secrets        Secrets
}

// NodeUnpublishRequest undoes a NodePublishRequest.
type NodeUnpublishRequest struct {
	ExternalID string
	TargetPath string
}

// NodeUnstageRequest undoes a NodeStageRequest.
type NodeUnstageRequest struct {
	ExternalID  string
	StagingPath string
}

// CreateVolumeRequest asks the plugin to create a volume. A repeated request with the same name
// returns the same volume.
type CreateVolumeRequest struct {
	Name         string
	CapacityMin  int64 // in bytes; 0 means any size
	CapacityMax  int64 // in bytes; 0 means no limit
	Capabilities []Capability
	FSType       string
	MountFlags   []string
	Parameters   map[string]string
	Mutable      map[string]string // CSI mutable_parameters; sent only to a plugin with MODIFY_VOLUME
	Topology     TopologyRequest

	// SnapshotID or CloneID is the external id of the snapshot or volume from which the new volume
	// is created. At most one of them is set.
	SnapshotID string
	CloneID    string
	Secrets    Secrets
}

// CreateVolumeResult describes the volume that the plugin created now or in an earlier call.
type CreateVolumeResult struct {
	ExternalID string
	Capacity   int64 // in bytes; 0 means unknown
	Context    map[string]string
	Topologies []map[string]string
}

// DeleteVolumeRequest asks the plugin to delete a volume. The call also succeeds if the volume does
// not exist.
type DeleteVolumeRequest struct {
	ExternalID string
	Secrets    Secrets
}

// ValidateRequest asks the plugin whether an existing volume supports the given capabilities.
type ValidateRequest struct {
	ExternalID    string
	Capabilities  []Capability
	FSType        string
	MountFlags    []string
	VolumeContext map[string]string
	Parameters    map[string]string
	Secrets       Secrets
}

// StatsRequest asks the plugin how much of a volume is used (CSI NodeGetVolumeStats).
type StatsRequest struct {
	ExternalID  string
	Path        string // the target or the staging path
	StagingPath string // empty if the plugin has no NodeStageVolume
}

// ExpandRequest asks the plugin to enlarge the storage of a volume (CSI ControllerExpandVolume).
type ExpandRequest struct {
	ExternalID  string
	CapacityMin int64 // in bytes
	CapacityMax int64 // in bytes; 0 means no limit
	Capability  Capability
	FSType      string
	MountFlags  []string
	Secrets     Secrets
}

// ExpandResult describes the storage after an expansion.
type ExpandResult struct {
	Capacity int64 // in bytes
	// NodeRequired is set if the agent must call NodeExpandVolume afterwards.
	NodeRequired bool
}

// NodeExpandRequest asks the plugin to enlarge the contents of a volume, such as its file system,
// to the size of its storage (CSI NodeExpandVolume).
type NodeExpandRequest struct {
	ExternalID  string
	Path        string // the target or the staging path
	StagingPath string // empty if the plugin has no NodeStageVolume
	CapacityMin int64  // in bytes
	CapacityMax int64  // in bytes; 0 means no limit
	Capability  Capability
	FSType      string
	MountFlags  []string
	Secrets     Secrets
}

// ModifyRequest asks the plugin to change mutable parameters (CSI ControllerModifyVolume).
type ModifyRequest struct {
	ExternalID string
	Mutable    map[string]string
	Secrets    Secrets
}

// GetVolumeRequest asks the plugin to describe one volume (CSI ControllerGetVolume).
type GetVolumeRequest struct {
	ExternalID string
}

// ListVolumesRequest asks the plugin for one page of its volumes.
type ListVolumesRequest struct {
	MaxEntries int32  // 0 lets the plugin choose the number
	Token      string // the field Next of the previous page; empty for the first page
}

// VolumePage is one page of the list of a plugin's volumes.
type VolumePage struct {
	Entries []StorageVolume
	Next    string // empty on the last page
}

// StorageVolume describes a volume as the plugin's controller reports it.
type StorageVolume struct {
	ExternalID string
	Capacity   int64 // in bytes; 0 means unknown
	Context    map[string]string
	Topologies []map[string]string
	SnapshotID string // the snapshot from which the volume was created, if the plugin reports it
	CloneID    string

	// PublishedNodes holds the ids of the nodes to which the volume is connected. It is empty if
	// the plugin does not report such nodes.
	PublishedNodes []string
	Condition      *Condition // set only by a plugin with VOLUME_CONDITION
}

// CapacityRequest asks the plugin how much storage it can still create.
type CapacityRequest struct {
	Capabilities []Capability
	FSType       string
	MountFlags   []string
	Parameters   map[string]string
	Topology     map[string]string // topology segments; sent only to a plugin with VOLUME_ACCESSIBILITY_CONSTRAINTS
}

// CapacityResult is the amount of storage that the plugin can still create, in bytes.
type CapacityResult struct {
	Available int64
	Largest   *int64 // the largest possible size of a volume; nil if the plugin does not report it
	Smallest  *int64
}

// SnapshotRequest asks the plugin to create a snapshot. A repeated request with the same name
// returns the same snapshot.
type SnapshotRequest struct {
	Name       string
	SourceID   string // the volume's external id
	Parameters map[string]string
	Secrets    Secrets
}

// Snapshot describes a snapshot as the plugin reports it.
type Snapshot struct {
	ID       string
	SourceID string // the volume's external id
	GroupID  string // the group snapshot that contains this snapshot, if any
	Size     int64  // the size in bytes of a volume made from the snapshot; 0 means unknown
	Created  time.Time
	// Ready is set if a volume can be created from the snapshot.
	Ready bool
}

// DeleteSnapshotRequest asks the plugin to delete a snapshot.
type DeleteSnapshotRequest struct {
	ID      string
	Secrets Secrets
}

// GetSnapshotRequest asks the plugin to describe one snapshot.
type GetSnapshotRequest struct {
	ID      string
	Secrets Secrets
}

// ListSnapshotsRequest asks the plugin for one page of its snapshots.
type ListSnapshotsRequest struct {
	SourceID   string // external id of a volume; selects the snapshots of this volume
	ID         string // id of a snapshot; selects only this snapshot
	MaxEntries int32  // 0 lets the plugin choose the number
	Token      string // the field Next of the previous page; empty for the first page
	Secrets    Secrets
}

// SnapshotPage is one page of the list of a plugin's snapshots.
type SnapshotPage struct {
	Entries []Snapshot
	Next    string // empty on the last page
}

// GroupSnapshotRequest asks the plugin to create snapshots of several volumes at the same moment. A
// repeated request with the same name returns the same snapshots.
type GroupSnapshotRequest struct {
	Name       string
	SourceIDs  []string // the volumes' external ids
	Parameters map[string]string
	Secrets    Secrets
}

// GroupSnapshot describes a group of snapshots as the plugin reports it.
type GroupSnapshot struct {
	ID        string
	Snapshots []Snapshot
	Created   time.Time
	Ready     bool // set if all snapshots of the group are ready
}

// DeleteGroupSnapshotRequest asks the plugin to delete a group snapshot and all its snapshots.
type DeleteGroupSnapshotRequest struct {
	ID          string
	SnapshotIDs []string
	Secrets     Secrets
}

// GetGroupSnapshotRequest asks the plugin to describe a group snapshot and all its snapshots.
type GetGroupSnapshotRequest struct {
	ID          string
	SnapshotIDs []string
	Secrets     Secrets
}

// NodeHealthRequest asks the node service for the health of a volume (CSI NodeGetVolumeHealth).
type NodeHealthRequest struct {
	ExternalID  string
	Path        string // the target; may be empty
	StagingPath string // empty if the plugin has no NodeStageVolume
}

// ControllerHealthRequest asks the controller for the health of a volume (CSI
// ControllerGetVolumeHealth).
type ControllerHealthRequest struct {
	ExternalID string
	Secrets    Secrets
}

// StorageHealthRequest asks the node service about its connection to the storage (CSI
// NodeGetStorageHealth).
type StorageHealthRequest struct {
	Secrets Secrets
}

// ListHealthRequest asks the plugin for one page of the list of volumes with problems.
type ListHealthRequest struct {
	MaxEntries int32
	Token      string
	Secrets    Secrets
}

// Health lists the problems of one volume. The list is empty for a healthy volume.
type Health struct {
	ExternalID string
	Entries    []Condition
}

// HealthPage is one page of the list of volumes with problems.
type HealthPage struct {
	Entries []Health
	Next    string // empty on the last page
}

// These constants are the severities of a Condition. A plugin that uses a later CSI version may
// send others. The agent stores such a severity as "status N".
const (
	Degraded     = "degraded"     // the volume is usable, but impaired
	Inaccessible = "inaccessible" // the volume is not usable, or the storage system is unreachable
	DataLoss     = "data-loss"    // data is lost or may be lost
	Abnormal     = "abnormal"     // reported by a plugin older than CSI 1.13, which cannot give details
)

// Condition is one problem that a plugin reports.
type Condition struct {
	Severity string `json:"severity"`
	Reason   string `json:"reason,omitempty"` // one word in CamelCase, for programs
	Message  string `json:"message,omitempty"`
}

// Usage is the total and the used amount of one resource, such as bytes or inodes.
type Usage struct {
	Total     int64 `json:"total"`
	Used      int64 `json:"used"`
	Available int64 `json:"available"`
}

// TotalOnly reports whether the plugin reported a total, but no used amount. The CSI specification
// (VolumeUsage) allows such an answer, for example for a block device.
func (u Usage) TotalOnly() bool { return u.Used == 0 && u.Available == 0 }

// Stats describes how much of a volume is used. A field is nil if the plugin does not report that
// resource.
type Stats struct {
	Bytes  *Usage `json:"bytes,omitempty"`
	Inodes *Usage `json:"inodes,omitempty"`
	// Condition is a problem that a plugin with VOLUME_CONDITION reports. It is nil if the plugin
	// reports no problem.
	Condition *Condition `json:"condition,omitempty"`
}

// String returns a text such as "inaccessible, PathDown: no path to the array".
func (c Condition) String() string {
	words := c.Severity
	if c.Reason != "" {
		words += ", " + c.Reason
	}
	if c.Message != "" {
		words += ": " + c.Message
	}
	return words
}
