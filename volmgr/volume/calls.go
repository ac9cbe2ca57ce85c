package volume

import "time"

// The requests and answers of the calls to a plugin, in the domain's terms.
// They stand here so that those who make the calls and the one who sends them
// need not know each other. Whoever sends them adapts them to the plugin: a
// field that the plugin's capabilities forbid is left out.

// ControllerPublishRequest asks for a volume to be attached to a node (CSI
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

// NodeStageRequest asks for a volume to be mounted at its one staging path,
// an existing directory (CSI NodeStageVolume).
type NodeStageRequest struct {
	ExternalID  string
	StagingPath string
	Capability  Capability
	FSType      string
	MountFlags  []string
	MountGroup  string // gid, in digits; sent only to a plugin with VOLUME_MOUNT_GROUP
	// PublishContext is ControllerPublishVolume's answer; sent only to a plugin
	// that attaches.
	PublishContext map[string]string
	VolumeContext  map[string]string
	Secrets        Secrets
}

// NodePublishRequest asks for a volume at one alloc's target path, which the
// plugin creates in an existing directory (CSI NodePublishVolume).
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

// CreateVolumeRequest asks for storage. The same name again gives the same
// volume.
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
	// SnapshotID or CloneID, an external id, is what the volume is made from.
	SnapshotID string
	CloneID    string
	Secrets    Secrets
}

// CreateVolumeResult is the volume that the plugin made or had.
type CreateVolumeResult struct {
	ExternalID string
	Capacity   int64 // bytes; 0 is unknown
	Context    map[string]string
	Topologies []map[string]string
}

// DeleteVolumeRequest destroys storage. A volume that is gone is no error.
type DeleteVolumeRequest struct {
	ExternalID string
	Secrets    Secrets
}

// ValidateRequest asks whether an existing volume can be used as wanted.
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
	Path        string // where it is published or staged
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

// ExpandResult is what the storage has grown to.
type ExpandResult struct {
	Capacity int64 // bytes
	// NodeRequired means that the node has to expand it as well.
	NodeRequired bool
}

// NodeExpandRequest asks for what a volume has on this host, as its file system, to
// be grown to the size of the storage (CSI NodeExpandVolume).
type NodeExpandRequest struct {
	ExternalID  string
	Path        string // where it is published, or staged
	StagingPath string // empty if the plugin does not stage
	CapacityMin int64  // bytes
	CapacityMax int64  // bytes; 0 is no limit
	Capability  Capability
	FSType      string
	MountFlags  []string
	Secrets     Secrets
}

// ModifyRequest asks for other mutable parameters (CSI ControllerModifyVolume).
type ModifyRequest struct {
	ExternalID string
	Mutable    map[string]string
	Secrets    Secrets
}

// ListVolumesRequest asks for one page of a plugin's volumes.
type ListVolumesRequest struct {
	MaxEntries int32  // 0 is as many as the plugin likes
	Token      string // Next of the page before, empty for the first one
}

// VolumePage is one page of a plugin's volumes.
type VolumePage struct {
	Entries []StorageVolume
	Next    string // empty on the last page
}

// StorageVolume is a volume as its plugin's controller knows it.
type StorageVolume struct {
	ExternalID string
	Capacity   int64 // bytes; 0 is unknown
	Context    map[string]string
	Topologies []map[string]string
	SnapshotID string // what it was made from, as far as the plugin says
	CloneID    string
	// PublishedNodes are node ids, of a plugin that tells them.
	PublishedNodes []string
	Condition      *Condition // of a plugin with VOLUME_CONDITION
}

// CapacityRequest asks how much can be created.
type CapacityRequest struct {
	Capabilities []Capability
	FSType       string
	MountFlags   []string
	Parameters   map[string]string
	Topology     map[string]string // segments; sent only to a plugin with VOLUME_ACCESSIBILITY_CONSTRAINTS
}

// CapacityResult is how much can be created, in bytes.
type CapacityResult struct {
	Available int64
	Largest   *int64 // of one volume; nil if the plugin does not say
	Smallest  *int64
}

// SnapshotRequest asks for a snapshot. The same name again gives the same one.
type SnapshotRequest struct {
	Name       string
	SourceID   string // the volume's external id
	Parameters map[string]string
	Secrets    Secrets
}

// Snapshot is a snapshot as its plugin knows it.
type Snapshot struct {
	ID       string
	SourceID string // the volume's external id
	GroupID  string // of the group snapshot that it belongs to, if it does
	Size     int64  // bytes that a volume made from it needs; 0 is unknown
	Created  time.Time
	// Ready means that a volume can be made from it.
	Ready bool
}

// SnapshotRef names one snapshot, to be deleted or asked for.
type SnapshotRef struct {
	ID      string
	Secrets Secrets
}

// ListSnapshotsRequest asks for one page of a plugin's snapshots.
type ListSnapshotsRequest struct {
	SourceID   string // only of this volume, by its external id
	ID         string // only this one
	MaxEntries int32  // 0 is as many as the plugin likes
	Token      string // Next of the page before, empty for the first one
	Secrets    Secrets
}

// SnapshotPage is one page of a plugin's snapshots.
type SnapshotPage struct {
	Entries []Snapshot
	Next    string // empty on the last page
}

// GroupSnapshotRequest asks for snapshots of several volumes as of one moment. The
// same name again gives the same ones.
type GroupSnapshotRequest struct {
	Name       string
	SourceIDs  []string // the volumes' external ids
	Parameters map[string]string
	Secrets    Secrets
}

// GroupSnapshot is a group of snapshots as its plugin knows it.
type GroupSnapshot struct {
	ID        string
	Snapshots []Snapshot
	Created   time.Time
	Ready     bool // all of them are
}

// GroupSnapshotRef names one group snapshot and its members, to be deleted or
// asked for.
type GroupSnapshotRef struct {
	ID          string
	SnapshotIDs []string
	Secrets     Secrets
}

// HealthRequest asks how a volume is. Of the node (CSI NodeGetVolumeHealth) the
// paths are used, of the controller (ControllerGetVolumeHealth) the secrets.
type HealthRequest struct {
	ExternalID  string
	Path        string // where it is published; may be empty
	StagingPath string // empty if the plugin does not stage
	Secrets     Secrets
}

// ListHealthRequest asks for one page of the volumes that are not well.
type ListHealthRequest struct {
	MaxEntries int32
	Token      string
	Secrets    Secrets
}

// Health is what a plugin finds wrong with one volume; nothing, where it has no
// entries.
type Health struct {
	ExternalID string
	Entries    []Condition
}

// HealthPage is one page of the volumes that are not well.
type HealthPage struct {
	Entries []Health
	Next    string // empty on the last page
}

// Severities of a Condition. A plugin with a newer specification may send others,
// which are kept as "status N".
const (
	Degraded     = "degraded"     // usable, not at its best
	Inaccessible = "inaccessible" // not usable; of a storage backend: unreachable
	DataLoss     = "data-loss"    // data is lost, or may be
	Abnormal     = "abnormal"     // what a plugin from before CSI 1.13 says, without more
)

// Condition is one thing that a plugin finds wrong.
type Condition struct {
	Severity string `json:"severity"`
	Reason   string `json:"reason,omitempty"` // CamelCase, for machines
	Message  string `json:"message,omitempty"`
}

// Usage is how much of one thing there is.
type Usage struct {
	Total     int64 `json:"total"`
	Used      int64 `json:"used"`
	Available int64 `json:"available"`
}

// TotalOnly tells whether the plugin said how much there is and not how much of that
// is used, as of a block device (CSI spec, VolumeUsage: both may be left out).
func (u Usage) TotalOnly() bool { return u.Used == 0 && u.Available == 0 }

// Stats is how full a volume is. What the plugin does not tell is nil.
type Stats struct {
	Bytes  *Usage `json:"bytes,omitempty"`
	Inodes *Usage `json:"inodes,omitempty"`
	// Condition is what a plugin with VOLUME_CONDITION finds wrong, if anything.
	Condition *Condition `json:"condition,omitempty"`
}
