package call

import "time"

// The client adapts each request to the plugin: it leaves out fields that the plugin's capabilities
// forbid.

// ControllerPublishRequest asks the plugin to connect a volume to a node (CSI
// ControllerPublishVolume).
type ControllerPublishRequest struct {
	ExternalID    string
	NodeID        string
	Capability    Capability
	FSType        string
	MountFlags    []string
	MountGroup    string // gid, in digits; sent only to a plugin with VOLUME_MOUNT_GROUP
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

// NodeStageRequest asks the plugin to mount a volume at its staging path, an existing directory
// (CSI NodeStageVolume).
type NodeStageRequest struct {
	ExternalID  string
	StagingPath string
	Capability  Capability
	FSType      string
	MountFlags  []string
	MountGroup  string // gid, in digits; sent only to a plugin with VOLUME_MOUNT_GROUP

	// PublishContext is ControllerPublishVolume's answer. It is sent only to a plugin with that
	// call.
	PublishContext map[string]string
	VolumeContext  map[string]string
	Secrets        Secrets
}

// NodePublishRequest asks the plugin to mount a volume at one alloc's target. The plugin creates
// the target in an existing directory (CSI NodePublishVolume).
type NodePublishRequest struct {
	ExternalID     string
	StagingPath    string // empty if the plugin does not stage
	TargetPath     string
	Capability     Capability
	FSType         string
	MountFlags     []string
	MountGroup     string // gid, in digits; sent only to a plugin with VOLUME_MOUNT_GROUP
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

// CreateVolumeRequest asks for storage. A request with the same name returns the same volume.
type CreateVolumeRequest struct {
	Name         string
	CapacityMin  int64 // bytes; 0 is any
	CapacityMax  int64 // bytes; 0 is no limit
	Capabilities []Capability
	FSType       string
	MountFlags   []string
	Parameters   map[string]string
	Mutable      map[string]string // mutable_parameters; sent only to a plugin with MODIFY_VOLUME
	Topology     TopologyRequest

	// SnapshotID or CloneID, an external id, names the source of the volume.
	SnapshotID string
	CloneID    string
	Secrets    Secrets
}

// CreateVolumeResult describes the volume that the plugin created or already had.
type CreateVolumeResult struct {
	ExternalID string
	Capacity   int64 // bytes; 0 is unknown
	Context    map[string]string
	Topologies []map[string]string
}

// DeleteVolumeRequest asks the plugin to destroy storage. A volume that does not exist is no error.
type DeleteVolumeRequest struct {
	ExternalID string
	Secrets    Secrets
}

// ValidateRequest asks whether an existing volume supports the requested use.
type ValidateRequest struct {
	ExternalID    string
	Capabilities  []Capability
	FSType        string
	MountFlags    []string
	VolumeContext map[string]string
	Parameters    map[string]string
	Secrets       Secrets
}

// StatsRequest asks how full a volume is (CSI NodeGetVolumeStats).
type StatsRequest struct {
	ExternalID  string
	Path        string // target or staging path
	StagingPath string // empty if the plugin does not stage
}

// ExpandRequest asks for more storage (CSI ControllerExpandVolume).
type ExpandRequest struct {
	ExternalID  string
	CapacityMin int64 // bytes
	CapacityMax int64 // bytes; 0 is no limit
	Capability  Capability
	FSType      string
	MountFlags  []string
	Secrets     Secrets
}

// ExpandResult is the new size of the storage.
type ExpandResult struct {
	Capacity int64 // bytes
	// NodeRequired means that NodeExpandVolume must follow.
	NodeRequired bool
}

// NodeExpandRequest asks the node service to enlarge a volume's contents, such as its file system,
// to the size of the storage (CSI NodeExpandVolume).
type NodeExpandRequest struct {
	ExternalID  string
	Path        string // target or staging path
	StagingPath string // empty if the plugin does not stage
	CapacityMin int64  // bytes
	CapacityMax int64  // bytes; 0 is no limit
	Capability  Capability
	FSType      string
	MountFlags  []string
	Secrets     Secrets
}

// ModifyRequest asks for a change of mutable parameters (CSI ControllerModifyVolume).
type ModifyRequest struct {
	ExternalID string
	Mutable    map[string]string
	Secrets    Secrets
}

// ListVolumesRequest asks for one page of a plugin's volumes.
type ListVolumesRequest struct {
	MaxEntries int32  // 0 leaves the number to the plugin
	Token      string // Next of the previous page; empty for the first page
}

// VolumePage is one page of a plugin's volumes.
type VolumePage struct {
	Entries []StorageVolume
	Next    string // empty on the last page
}

// StorageVolume is a volume as its plugin's controller reports it.
type StorageVolume struct {
	ExternalID string
	Capacity   int64 // bytes; 0 is unknown
	Context    map[string]string
	Topologies []map[string]string
	SnapshotID string // the source, if the plugin reports it
	CloneID    string

	// PublishedNodes are node ids. Not every plugin reports them.
	PublishedNodes []string
	Condition      *Condition // only from a plugin with VOLUME_CONDITION
}

// CapacityRequest asks how much storage can be created.
type CapacityRequest struct {
	Capabilities []Capability
	FSType       string
	MountFlags   []string
	Parameters   map[string]string
	Topology     map[string]string // segments; sent only to a plugin with VOLUME_ACCESSIBILITY_CONSTRAINTS
}

// CapacityResult is the amount of storage that can be created, in bytes.
type CapacityResult struct {
	Available int64
	Largest   *int64 // for one volume; nil if the plugin does not say
	Smallest  *int64
}

// SnapshotRequest asks for a snapshot. A request with the same name returns the same snapshot.
type SnapshotRequest struct {
	Name       string
	SourceID   string // the volume's external id
	Parameters map[string]string
	Secrets    Secrets
}

// Snapshot is a snapshot as its plugin reports it.
type Snapshot struct {
	ID       string
	SourceID string // the volume's external id
	GroupID  string // the group snapshot that it belongs to, if any
	Size     int64  // bytes that a volume made from it needs; 0 is unknown
	Created  time.Time
	// Ready means that a volume can be made from it.
	Ready bool
}

// SnapshotRef names one snapshot for a delete or a query.
type SnapshotRef struct {
	ID      string
	Secrets Secrets
}

// ListSnapshotsRequest asks for one page of a plugin's snapshots.
type ListSnapshotsRequest struct {
	SourceID   string // only of this volume, by its external id
	ID         string // only this one
	MaxEntries int32  // 0 leaves the number to the plugin
	Token      string // Next of the previous page; empty for the first page
	Secrets    Secrets
}

// SnapshotPage is one page of a plugin's snapshots.
type SnapshotPage struct {
	Entries []Snapshot
	Next    string // empty on the last page
}

// GroupSnapshotRequest asks for snapshots of several volumes at one moment. A request with the same
// name returns the same snapshots.
type GroupSnapshotRequest struct {
	Name       string
	SourceIDs  []string // the volumes' external ids
	Parameters map[string]string
	Secrets    Secrets
}

// GroupSnapshot is a group of snapshots as its plugin reports it.
type GroupSnapshot struct {
	ID        string
	Snapshots []Snapshot
	Created   time.Time
	Ready     bool // all snapshots are ready
}

// GroupSnapshotRef names one group snapshot and its members for a delete or a query.
type GroupSnapshotRef struct {
	ID          string
	SnapshotIDs []string
	Secrets     Secrets
}

// HealthRequest asks for the health of a volume. The node call (CSI NodeGetVolumeHealth) uses the
// paths, and the controller call (ControllerGetVolumeHealth) uses the secrets.
type HealthRequest struct {
	ExternalID  string
	Path        string // target; may be empty
	StagingPath string // empty if the plugin does not stage
	Secrets     Secrets
}

// ListHealthRequest asks for one page of the volumes that have problems.
type ListHealthRequest struct {
	MaxEntries int32
	Token      string
	Secrets    Secrets
}

// Health lists the problems that a plugin reports for one volume. It has no entries if there are
// none.
type Health struct {
	ExternalID string
	Entries    []Condition
}

// HealthPage is one page of the volumes that have problems.
type HealthPage struct {
	Entries []Health
	Next    string // empty on the last page
}

// The severities of a Condition. A plugin with a newer specification may send others, which are
// stored as "status N".
const (
	Degraded     = "degraded"     // usable, but impaired
	Inaccessible = "inaccessible" // not usable; for a storage backend: unreachable
	DataLoss     = "data-loss"    // data is lost or may be lost
	Abnormal     = "abnormal"     // from a plugin older than CSI 1.13, which gives no details
)

// Condition is one problem that a plugin reports.
type Condition struct {
	Severity string `json:"severity"`
	Reason   string `json:"reason,omitempty"` // CamelCase, for machines
	Message  string `json:"message,omitempty"`
}

// Usage says how much there is of one resource, such as bytes or inodes, and how much of it is
// used.
type Usage struct {
	Total     int64 `json:"total"`
	Used      int64 `json:"used"`
	Available int64 `json:"available"`
}

// TotalOnly reports whether the plugin gave a total without saying how much of it is used. The CSI
// specification (VolumeUsage) allows that, for example for a block device.
func (u Usage) TotalOnly() bool { return u.Used == 0 && u.Available == 0 }

// Stats describes how full a volume is. A field is nil if the plugin does not report it.
type Stats struct {
	Bytes  *Usage `json:"bytes,omitempty"`
	Inodes *Usage `json:"inodes,omitempty"`
	// Condition is the problem that a plugin with VOLUME_CONDITION reports, if any.
	Condition *Condition `json:"condition,omitempty"`
}

// String describes a condition, as in "inaccessible, PathDown: no path to the array".
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
