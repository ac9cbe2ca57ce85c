package api

import "time"

// ModifyRequest asks for other values of mutable parameters. Those that are left
// out stay as they are.
type ModifyRequest struct {
	Mutable map[string]string `json:"mutable_parameters"`
}

// Report is what a plugin said of a volume when it was last asked.
type Report struct {
	Stats *Stats `json:"stats,omitempty"`
	// Health is what the plugin's services find wrong. CheckedAt says when each of
	// them ("node", "controller") was last asked and answered; one that is not in it
	// cannot tell, or has not answered.
	Health    []Finding            `json:"health,omitempty"`
	CheckedAt map[string]time.Time `json:"checked_at,omitempty"`
	// Storage is the volume as the plugin's controller knows it, where that was
	// asked for.
	Storage *StorageVolume `json:"storage,omitempty"`
	// Silent are the calls that had no useful answer, each with the reason.
	Silent []string `json:"silent,omitempty"`
}

// Finding is one thing that a plugin finds wrong.
type Finding struct {
	// By is the service that finds it: "node" or "controller".
	By string `json:"by"`
	// Severity is degraded, inaccessible, data-loss, abnormal (where the plugin says
	// no more than that), or "status N" of a newer CSI.
	Severity string `json:"severity"`
	Reason   string `json:"reason,omitempty"` // in CamelCase, for machines
	Message  string `json:"message,omitempty"`
}

// StorageVolume is a volume as a plugin's controller knows it.
type StorageVolume struct {
	ExternalID string `json:"external_id"`
	// Volume is the id under which it is registered here; empty if it is not.
	Volume         string              `json:"volume,omitempty"`
	Capacity       int64               `json:"capacity,omitempty"` // bytes; 0 is unknown
	Context        map[string]string   `json:"context,omitempty"`
	Topologies     []map[string]string `json:"topologies,omitempty"`
	SnapshotID     string              `json:"snapshot_id,omitempty"`
	CloneID        string              `json:"clone_id,omitempty"`
	PublishedNodes []string            `json:"published_nodes,omitempty"` // node ids, if the plugin tells
	Health         []Finding           `json:"health,omitempty"`
}

// StorageVolumeLine is one line of the answer that lists a plugin's volumes: a
// volume, or at the end whether there are more or why there are not.
type StorageVolumeLine struct {
	Volume *StorageVolume `json:"volume,omitempty"`
	End    *ListEnd       `json:"end,omitempty"`
	Error  *Error         `json:"error,omitempty"`
}

// ListEnd is the end of a listing.
type ListEnd struct {
	More bool `json:"more"` // the limit was reached, and there are others
}

// CapacityRequest asks how much a plugin can still create, of volumes like this.
type CapacityRequest struct {
	Capabilities []Capability      `json:"capabilities,omitempty"`
	Parameters   map[string]string `json:"parameters,omitempty"`
	Topology     map[string]string `json:"topology,omitempty"`
}

// Capacity is how much a plugin can still create, in bytes.
type Capacity struct {
	Available int64 `json:"available"`
	// Largest and Smallest are of one volume; null if the plugin does not say.
	Largest  *int64 `json:"largest,omitempty"`
	Smallest *int64 `json:"smallest,omitempty"`
}

// PluginHealth is how a plugin finds its storage, and the volumes in it.
type PluginHealth struct {
	// Storage is what is wrong with the way to the storage, Volumes are those that
	// are not well. Asked are the calls behind it that were answered, Silent those
	// that were not, each with the reason.
	Storage []Finding      `json:"storage"`
	Volumes []VolumeHealth `json:"volumes"`
	More    bool           `json:"more,omitempty"` // there are more volumes that are not well
	Asked   []string       `json:"asked"`
	Silent  []string       `json:"silent,omitempty"`
}

// VolumeHealth is what is wrong with one volume of a plugin.
type VolumeHealth struct {
	ExternalID string    `json:"external_id"`
	Volume     string    `json:"volume,omitempty"` // its id here, if it is registered
	Health     []Finding `json:"health"`
}
