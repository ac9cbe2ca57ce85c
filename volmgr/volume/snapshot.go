package volume

import (
	"errors"
	"slices"
	"time"
)

// SnapshotIntent is a snapshot, or a group of them, that was to be made and has not
// been seen to be finished. Nothing is kept of one that is: it lives at its plugin.
type SnapshotIntent struct {
	PluginID string `json:"plugin_id"`
	Driver   string `json:"driver"`
	// Name is what the plugin knows the intent by: the same name again goes on with it.
	Name string `json:"name"`
	// Group tells a group snapshot from a snapshot; their names are apart.
	Group   bool      `json:"group,omitempty"`
	Volumes []string  `json:"volumes"`      // ids here, sorted
	Sources []string  `json:"sources"`      // their external ids, in the same order
	ID      string    `json:"id,omitempty"` // the plugin's, once it said so
	Since   time.Time `json:"since"`
}

// Key names the intent: a driver makes one snapshot, and one group, of a name.
func (s SnapshotIntent) Key() string {
	kind := "snapshot"
	if s.Group {
		kind = "group"
	}
	return s.Driver + "\x00" + kind + "\x00" + s.Name
}

// Noun is what the intent is of, in words.
func (s SnapshotIntent) Noun() string { return noun(s.Group) }

func noun(group bool) string {
	if group {
		return "group snapshot"
	}
	return "snapshot"
}

// Same reports whether two intents of one name are of the same volumes.
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

// SnapshotAsk says what is to be made a snapshot of.
type SnapshotAsk struct {
	Volumes    []string // ids; a group may have several
	Group      bool
	Name       string // the same name again goes on with it
	Parameters map[string]string
	Secrets    map[string]SecretRef // laid over those of the volumes
}

// MadeSnapshot is a snapshot that was made, or is being made; or a group of them, all of
// which stand in Snapshots. While the plugin has not named it, the ID is empty.
type MadeSnapshot struct {
	Intent SnapshotIntent
	GroupSnapshot
}

// SnapshotsAsk says which snapshots are asked for; what is empty does not narrow it.
type SnapshotsAsk struct {
	PluginID string
	VolumeID string // its plugin and secrets are used
	Secrets  map[string]SecretRef
	// Pending asks no plugin: only those that have not been seen to be finished.
	Pending bool
}

// Snapshots are what plugins say that they have, and what was begun besides.
type Snapshots struct {
	Listed  []ListedSnapshot
	Pending []PendingSnapshot
	// Notes say in words what is missing.
	Notes []string
}

// ListedSnapshot is a snapshot that its plugin has.
type ListedSnapshot struct {
	PluginID, Driver string
	Name             string // where it is known here
	Snapshot
}

// PendingSnapshot has not been seen to be finished, and is not among those that are
// listed.
type PendingSnapshot struct {
	SnapshotIntent
	Doing string // what is going on with it now, in words; empty if nothing is
}

// SnapshotAt names a snapshot, or a group of them, at a plugin.
type SnapshotAt struct {
	PluginID string
	ID       string
	Group    bool
	Members  []string // of a group, as far as they are known
	Secrets  map[string]SecretRef
}

// Noun is "snapshot" or "group snapshot".
func (r SnapshotAt) Noun() string { return noun(r.Group) }
