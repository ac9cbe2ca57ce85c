package volume

import "time"

// Volume is what is known of a storage volume apart from this host's mounts.
type Volume struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	PluginID   string `json:"plugin_id"`
	Driver     string `json:"driver"`      // CSI driver name; with ExternalID unique on a host
	ExternalID string `json:"external_id"` // CSI volume_id; empty while it is being created

	SnapshotID  string `json:"snapshot_id,omitempty"`
	CloneID     string `json:"clone_id,omitempty"`
	CapacityMin int64  `json:"capacity_min,omitempty"` // bytes asked for; 0 is any
	CapacityMax int64  `json:"capacity_max,omitempty"`
	Capacity    int64  `json:"capacity,omitempty"` // bytes the plugin gave; 0 is unknown

	Capabilities []Capability        `json:"capabilities"`
	MountOptions MountOptions        `json:"mount_options,omitzero"`
	Topology     TopologyRequest     `json:"topology_request,omitzero"`
	Topologies   []map[string]string `json:"topologies,omitempty"` // accessible_topology of the answer
	// TopologySent is what CreateVolume was sent, until its outcome is known: Topology,
	// or the default that a request without one has.
	TopologySent TopologyRequest      `json:"topology_sent,omitzero"`
	Parameters   map[string]string    `json:"parameters,omitempty"`
	Mutable      map[string]string    `json:"mutable_parameters,omitempty"` // as far as they are known to be in force
	Context      map[string]string    `json:"context,omitempty"`
	Secrets      map[string]SecretRef `json:"secrets,omitempty"`
	Reclaim      string               `json:"reclaim,omitempty"`

	// Modifying are mutable parameters of a modify that was not seen to end: of
	// each, the value in Mutable or this one is in force.
	Modifying map[string]string `json:"modifying,omitempty"`
	// Created tells a volume that this agent created from one that existed.
	Created bool `json:"created,omitempty"`
	// Provision is the intent of a create or delete that has not been seen to
	// end.
	Provision Provision `json:"provision,omitempty"`
	// Expansion is the growth that was asked for and is not over.
	Expansion    Expansion `json:"expansion,omitzero"`
	RegisteredAt time.Time `json:"registered_at"`
}

// Provision is the controller's side of a volume's life.
type Provision string

// Provision states. The zero value is a volume that exists.
const (
	Provisioned  Provision = ""
	Provisioning Provision = "creating"
	Deleting     Provision = "deleting"
)

// MountOptions are passed to the plugin for file-system volumes.
type MountOptions struct {
	FSType     string   `json:"fs_type,omitempty"`
	MountFlags []string `json:"mount_flags,omitempty"`
}

// TopologyRequest says where a created volume must or should be reachable.
type TopologyRequest struct {
	Required  []map[string]string `json:"required,omitempty"`
	Preferred []map[string]string `json:"preferred,omitempty"`
}

// Given reports whether the request names a place.
func (t TopologyRequest) Given() bool { return len(t.Required)+len(t.Preferred) > 0 }
