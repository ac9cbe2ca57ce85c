package volume

import (
	"time"

	"github.com/volagent/volagent/volmgr/call"
)

// Volume describes a storage volume, apart from its mounts on this host.
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
	Capacity    int64  `json:"capacity,omitempty"` // bytes the plugin provided; 0 is unknown

	Capabilities []call.Capability    `json:"capabilities"`
	MountOptions call.MountOptions    `json:"mount_options,omitzero"`
	Topology     call.TopologyRequest `json:"topology_request,omitzero"`
	Topologies   []map[string]string  `json:"topologies,omitempty"` // accessible_topology that the plugin returned

	// TopologySent is the request that CreateVolume carried, until its outcome is known. It is
	// Topology, or the default if Topology names no place.
	TopologySent call.TopologyRequest      `json:"topology_sent,omitzero"`
	Parameters   map[string]string         `json:"parameters,omitempty"`
	Mutable      map[string]string         `json:"mutable_parameters,omitempty"` // values believed to be in force
	Context      map[string]string         `json:"context,omitempty"`
	Secrets      map[string]call.SecretRef `json:"secrets,omitempty"`
	Reclaim      string                    `json:"reclaim,omitempty"`

	// Modifying holds the mutable parameters of a modify whose end the agent did not see. For each
	// of them, either the value in Mutable or this one is in force.
	Modifying map[string]string `json:"modifying,omitempty"`

	// Created is set if this agent created the volume, and not if it registered an existing one.
	Created bool `json:"created,omitempty"`

	// Provision is the intent of a create or delete whose end the agent has not seen.
	Provision Provision `json:"provision,omitempty"`

	// Expansion is a requested growth that is not finished.
	Expansion    Expansion `json:"expansion,omitzero"`
	RegisteredAt time.Time `json:"registered_at"`
}

// Provision is the state of a volume at its controller.
type Provision string

// The Provision states. The zero value is a volume that exists.
const (
	Provisioned  Provision = ""
	Provisioning Provision = "creating"
	Deleting     Provision = "deleting"
)
