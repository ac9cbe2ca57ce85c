package volume

import (
	"errors"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
)

// SnapshotIntent is a snapshot, or a group of them, whose creation the agent has not seen finish. A
// finished snapshot needs no intent, because it lives at its plugin.
type SnapshotIntent struct {
	PluginID string `json:"plugin_id"`
	Driver   string `json:"driver"`

	// Name is the plugin's name for the snapshot. A request with the same name continues the
	// intent.
	Name string `json:"name"`

	// Group distinguishes a group snapshot from a snapshot. Their names are independent.
	Group   bool      `json:"group,omitempty"`
	Volumes []string  `json:"volumes"`      // volume ids, sorted
	Sources []string  `json:"sources"`      // their external ids, in the same order
	ID      string    `json:"id,omitempty"` // the plugin's id, once it is known
	Since   time.Time `json:"since"`
}

// Key returns the key of the intent. A driver makes one snapshot, and one group, for each name.
func (s SnapshotIntent) Key() string {
	kind := "snapshot"
	if s.Group {
		kind = "group"
	}
	return s.Driver + "\x00" + kind + "\x00" + s.Name
}

// Noun returns the kind of the intent: "snapshot" or "group snapshot".
func (s SnapshotIntent) Noun() string { return noun(s.Group) }

func noun(group bool) string {
	if group {
		return "group snapshot"
	}
	return "snapshot"
}

// Same reports whether two intents with one name have the same volumes.
func (s SnapshotIntent) Same(o SnapshotIntent) bool {
	return s.Key() == o.Key() && s.PluginID == o.PluginID && slices.Equal(s.Sources, o.Sources)
}

// Check refuses an intent that cannot have been stored.
func (s SnapshotIntent) Check() error {
	errs := []error{CheckID("snapshot name", s.Name), CheckPluginID(s.PluginID)}
	if s.Driver == "" || len(s.Volumes) == 0 || len(s.Volumes) != len(s.Sources) {
		errs = append(errs, Errorf(ErrInvalid, "snapshot %q is of %d volumes with %d external ids of driver %q", s.Name, len(s.Volumes), len(s.Sources), s.Driver))
	}
	return errors.Join(errs...)
}

// SnapshotAsk is a request for a snapshot or a group of snapshots.
type SnapshotAsk struct {
	Volumes    []string // ids; a group may have several
	Group      bool
	Name       string // a request with the same name continues the first one
	Parameters map[string]string
	Secrets    map[string]call.SecretRef // override those of the volumes
}

// MadeSnapshot is a snapshot that was made or is being made, or a group of them. Snapshots holds
// all of its members. The ID is empty until the plugin has returned it.
type MadeSnapshot struct {
	Intent SnapshotIntent
	call.GroupSnapshot
}

// SnapshotsAsk selects snapshots. An empty field does not narrow the selection.
type SnapshotsAsk struct {
	PluginID string
	VolumeID string // its plugin and secrets are used
	Secrets  map[string]call.SecretRef
	// Pending selects only unfinished snapshots and asks no plugin.
	Pending bool
}

// Snapshots holds the snapshots that plugins list, and the unfinished ones besides.
type Snapshots struct {
	Listed  []ListedSnapshot
	Pending []PendingSnapshot
	// Notes describe the parts of the answer that are missing.
	Notes []string
}

// ListedSnapshot is a snapshot that its plugin lists.
type ListedSnapshot struct {
	PluginID, Driver string
	Name             string // if the agent knows it
	call.Snapshot
}

// PendingSnapshot is an unfinished snapshot that no plugin lists.
type PendingSnapshot struct {
	SnapshotIntent
	Doing string // the present work on it, in words; empty if there is none
}

// SnapshotAt names a snapshot, or a group snapshot, at a plugin.
type SnapshotAt struct {
	PluginID string
	ID       string
	Group    bool
	Members  []string // of a group, as far as they are known
	Secrets  map[string]call.SecretRef
}

// Noun returns "snapshot" or "group snapshot".
func (r SnapshotAt) Noun() string { return noun(r.Group) }
