package volume

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
	ReadOnly      bool // sent only to a plugin with PUBLISH_READONLY
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

// Usage is how much of one thing there is.
type Usage struct {
	Total     int64 `json:"total"`
	Used      int64 `json:"used"`
	Available int64 `json:"available"`
}

// Stats is how full a volume is. What the plugin does not tell is nil.
type Stats struct {
	Bytes  *Usage `json:"bytes,omitempty"`
	Inodes *Usage `json:"inodes,omitempty"`
}
