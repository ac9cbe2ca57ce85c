package api

import "time"

// States of a snapshot.
const (
	SnapshotReady    = "ready"    // a volume can be created from it
	SnapshotCreating = "creating" // it exists or is being made, but is not ready yet
	SnapshotUnknown  = "unknown"  // it was begun, and the plugin has never confirmed that it exists
)

// SnapshotRequest asks for a snapshot of a volume. A second request with the same name continues
// the same snapshot.
type SnapshotRequest struct {
	Volume     string            `json:"volume"`
	Name       string            `json:"name"`
	Parameters map[string]string `json:"parameters,omitempty"`
	// Secrets override those of the volume.
	Secrets map[string]Secret `json:"secrets,omitempty"`
}

// GroupSnapshotRequest asks for snapshots of several volumes at one moment. A second request with
// the same name continues the same group.
type GroupSnapshotRequest struct {
	Volumes    []string          `json:"volumes"`
	Name       string            `json:"name"`
	Parameters map[string]string `json:"parameters,omitempty"`
	Secrets    map[string]Secret `json:"secrets,omitempty"`
}

// SnapshotRef holds the data that deleting a snapshot or a group needs besides its id.
type SnapshotRef struct {
	// Snapshots are the members of a group. If it is empty, the agent looks for them.
	Snapshots []string          `json:"snapshots,omitempty"`
	Secrets   map[string]Secret `json:"secrets,omitempty"`
}

// Snapshot is a snapshot as its plugin reports it, or as the agent requested it.
type Snapshot struct {
	// ID is the plugin's id. It is empty until the plugin has assigned one.
	ID string `json:"id"`

	// Name is set while the agent knows it: until it has seen that the snapshot is ready.
	Name     string `json:"name,omitempty"`
	PluginID string `json:"plugin_id"`

	// Volume is the id of the volume if it is registered here. SourceID is its external id.
	Volume    string    `json:"volume,omitempty"`
	SourceID  string    `json:"source_id"`
	GroupID   string    `json:"group_id,omitempty"`
	State     string    `json:"state"`
	Size      int64     `json:"size,omitempty"` // bytes that a volume created from it needs; 0 is unknown
	CreatedAt time.Time `json:"created_at,omitzero"`

	// Message says why the snapshot is not ready.
	Message string `json:"message,omitempty"`
}

// GroupSnapshot is a group of snapshots.
type GroupSnapshot struct {
	ID        string     `json:"id"`
	Name      string     `json:"name,omitempty"`
	PluginID  string     `json:"plugin_id"`
	State     string     `json:"state"`
	CreatedAt time.Time  `json:"created_at,omitzero"`
	Snapshots []Snapshot `json:"snapshots"`

	// Volumes and Message are set for a group that is not ready.
	Volumes []string `json:"volumes,omitempty"`
	Message string   `json:"message,omitempty"`
}

// Snapshots is a list of snapshots and groups.
type Snapshots struct {
	Snapshots []Snapshot `json:"snapshots"`
	// Groups are those that the agent has not seen finish. Plugins cannot list groups.
	Groups []GroupSnapshot `json:"groups"`
	// Notes say which parts of the list are missing, one sentence each.
	Notes []string `json:"notes,omitempty"`
}
