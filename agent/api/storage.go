package api

// ModifyRequest asks for new values of mutable parameters. Other parameters keep their values.
type ModifyRequest struct {
	Mutable map[string]string `json:"mutable_parameters"`
}

// Finding is one problem that a plugin reports.
type Finding struct {
	// By is the service that reports the problem: "node" or "controller".
	By string `json:"by"`

	// Severity is degraded, inaccessible, data-loss, abnormal (if the plugin gives no details), or
	// "status N" for a status from a newer CSI.
	Severity string `json:"severity"`
	Reason   string `json:"reason,omitempty"` // in CamelCase, for programs
	Message  string `json:"message,omitempty"`
}

// StorageVolume describes a volume as the plugin's controller reports it.
type StorageVolume struct {
	ExternalID string `json:"external_id"`

	// Volume is the id under which the volume is registered with this agent. It is empty if the
	// volume is not registered.
	Volume         string              `json:"volume,omitempty"`
	Capacity       int64               `json:"capacity,omitempty"` // in bytes; 0 means unknown
	Context        map[string]string   `json:"context,omitempty"`
	Topologies     []map[string]string `json:"topologies,omitempty"`
	SnapshotID     string              `json:"snapshot_id,omitempty"`
	CloneID        string              `json:"clone_id,omitempty"`
	PublishedNodes []string            `json:"published_nodes,omitempty"` // the ids of the nodes to which the volume is connected, if the plugin reports them
	Health         []Finding           `json:"health,omitempty"`
}

// StorageVolumeLine is one line of the answer that lists a plugin's volumes. Each line contains a
// volume, except for the last line, which contains End or the error that ended the list.
type StorageVolumeLine struct {
	Volume *StorageVolume `json:"volume,omitempty"`
	End    *ListEnd       `json:"end,omitempty"`
	Error  *Error         `json:"error,omitempty"`
}

// ListEnd marks the end of a list.
type ListEnd struct {
	More bool `json:"more"` // the limit was reached, and the plugin has more volumes
}

// CapacityRequest asks how much storage a plugin can still create for volumes with these
// properties.
type CapacityRequest struct {
	Capabilities []Capability      `json:"capabilities,omitempty"`
	Parameters   map[string]string `json:"parameters,omitempty"`
	Topology     map[string]string `json:"topology,omitempty"`
}

// Capacity is the amount of storage that a plugin can still create, in bytes.
type Capacity struct {
	Available int64 `json:"available"`
	// Largest and Smallest limit the size of a single volume. They are null if the plugin does not
	// report them.
	Largest  *int64 `json:"largest,omitempty"`
	Smallest *int64 `json:"smallest,omitempty"`
}

// PluginHealth is a plugin's report about its storage and about the volumes in it.
type PluginHealth struct {
	// Storage lists the problems of the connection to the storage. Volumes lists the volumes with
	// problems. Asked lists the calls that the plugin answered. Silent lists the calls that the
	// plugin did not answer, each with the reason.
	Storage []Finding      `json:"storage"`
	Volumes []VolumeHealth `json:"volumes"`
	More    bool           `json:"more,omitempty"` // the plugin has more volumes with problems than the list shows
	Asked   []string       `json:"asked"`
	Silent  []string       `json:"silent,omitempty"`
}

// VolumeHealth lists the problems of one volume of a plugin.
type VolumeHealth struct {
	ExternalID string    `json:"external_id"`
	Volume     string    `json:"volume,omitempty"` // the id under which the volume is registered with this agent, or empty
	Health     []Finding `json:"health"`
}

// Capability is one combination of modes in which a volume may be claimed.
type Capability struct {
	AccessMode     string `json:"access_mode" yaml:"access_mode"`
	AttachmentMode string `json:"attachment_mode" yaml:"attachment_mode"`
}
