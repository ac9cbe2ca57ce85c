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
