package api

import "time"

// States of a snapshot.
const (
	SnapshotReady    = "ready"    // a volume can be made from it
	SnapshotCreating = "creating" // it is there, or being made, and not ready yet
	SnapshotUnknown  = "unknown"  // it was begun, and the plugin has never said that it is there
)

// SnapshotRequest asks for a snapshot of a volume. The same name again goes on with the
// same snapshot.
type SnapshotRequest struct {
	Volume     string            `json:"volume"`
	Name       string            `json:"name"`
	Parameters map[string]string `json:"parameters,omitempty"`
	// Secrets are laid over those of the volume.
	Secrets map[string]Secret `json:"secrets,omitempty"`
}

// GroupSnapshotRequest asks for snapshots of several volumes as of one moment. The same
// name again goes on with the same group.
type GroupSnapshotRequest struct {
	Volumes    []string          `json:"volumes"`
	Name       string            `json:"name"`
	Parameters map[string]string `json:"parameters,omitempty"`
	Secrets    map[string]Secret `json:"secrets,omitempty"`
}

// SnapshotRef is what is needed, beside its id, to delete a snapshot or a group.
type SnapshotRef struct {
	// Snapshots are the members of a group; without them they are looked for.
	Snapshots []string          `json:"snapshots,omitempty"`
	Secrets   map[string]Secret `json:"secrets,omitempty"`
}

// Snapshot is a snapshot as its plugin has it, or as it was begun.
type Snapshot struct {
	// ID is the plugin's; empty while it has not given one.
	ID string `json:"id"`
	// Name is set while the agent knows it: until the snapshot was seen to be ready.
	Name     string `json:"name,omitempty"`
	PluginID string `json:"plugin_id"`
	// Volume is the id under which the volume is registered here, if it is; SourceID
	// is its external id.
	Volume    string    `json:"volume,omitempty"`
	SourceID  string    `json:"source_id"`
	GroupID   string    `json:"group_id,omitempty"`
	State     string    `json:"state"`
	Size      int64     `json:"size,omitempty"` // bytes that a volume made from it needs; 0 is unknown
	CreatedAt time.Time `json:"created_at,omitzero"`
	// Message says what is going on with one that is not ready.
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

// Snapshots is a listing.
type Snapshots struct {
	Snapshots []Snapshot `json:"snapshots"`
	// Groups are those that have not been seen to be finished; no plugin lists groups.
	Groups []GroupSnapshot `json:"groups"`
	// Notes say what is missing, one sentence each.
	Notes []string `json:"notes,omitempty"`
}
