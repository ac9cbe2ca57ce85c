package api

import "time"

// These are the states of a snapshot.
const (
	SnapshotReady    = "ready"    // the plugin can create a volume from the snapshot
	SnapshotCreating = "creating" // the plugin is making the snapshot, or it exists but is not ready yet
	SnapshotUnknown  = "unknown"  // the agent requested the snapshot, and the plugin never confirmed that it exists
)

// SnapshotRequest asks for a snapshot of a volume. A second request with the same name refers to
// the same snapshot.
type SnapshotRequest struct {
	Volume     string            `json:"volume"`
	Name       string            `json:"name"`
	Parameters map[string]string `json:"parameters,omitempty"`
	// Secrets replace the secrets of the volume.
	Secrets map[string]Secret `json:"secrets,omitempty"`
}

// GroupSnapshotRequest asks for snapshots of several volumes at the same moment. A second request
// with the same name refers to the same group.
type GroupSnapshotRequest struct {
	Volumes    []string          `json:"volumes"`
	Name       string            `json:"name"`
	Parameters map[string]string `json:"parameters,omitempty"`
	Secrets    map[string]Secret `json:"secrets,omitempty"`
}

// SnapshotRef contains the data that a request to delete a snapshot or group needs besides the id.
type SnapshotRef struct {
	// Snapshots are the ids of the group's members. If the list is empty, the agent searches for
	// the members.
	Snapshots []string          `json:"snapshots,omitempty"`
	Secrets   map[string]Secret `json:"secrets,omitempty"`
}

// Snapshot is a snapshot that a plugin reported or that the agent requested.
type Snapshot struct {
	// ID is the plugin's id for the snapshot. It is empty until the plugin has assigned one.
	ID string `json:"id"`

	// Name is set until the agent has seen that the snapshot is ready. The agent then forgets the
	// name.
	Name     string `json:"name,omitempty"`
	PluginID string `json:"plugin_id"`

	// Volume is the id of the source volume, if the volume is registered here. SourceID is its
	// external id.
	Volume    string    `json:"volume,omitempty"`
	SourceID  string    `json:"source_id"`
	GroupID   string    `json:"group_id,omitempty"`
	State     string    `json:"state"`
	Size      int64     `json:"size,omitempty"` // the minimum size, in bytes, of a volume created from the snapshot; 0 means unknown
	CreatedAt time.Time `json:"created_at,omitzero"`

	// Message is the reason why the snapshot is not ready.
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

	// Volumes and Message are set only for a group that is not ready.
	Volumes []string `json:"volumes,omitempty"`
	Message string   `json:"message,omitempty"`
}

// Snapshots is a list of snapshots and of groups.
type Snapshots struct {
	Snapshots []Snapshot `json:"snapshots"`
	// Groups lists only the groups that the agent has not yet seen completed. Completed groups are
	// missing, because plugins cannot list groups.
	Groups []GroupSnapshot `json:"groups"`
	// Notes describe the parts of the list that are missing, in one sentence each.
	Notes []string `json:"notes,omitempty"`
}
