package volume

import (
	"errors"
	"slices"
	"strings"
)

// SnapshotName is the name under which a snapshot, or a group of snapshots, was created. The agent
// keeps it after the snapshot is complete, so that a user can give the name instead of the id that
// the plugin assigned.
type SnapshotName struct {
	PluginID string `json:"plugin_id"`
	Driver   string `json:"driver"`
	Name     string `json:"name"`
	Group    bool   `json:"group,omitempty"`
	ID       string `json:"id"` // the plugin's id
}

// Named returns the name of an intent, with the id that the plugin returned.
func (s SnapshotIntent) Named(id string) SnapshotName {
	return SnapshotName{PluginID: s.PluginID, Driver: s.Driver, Name: s.Name, Group: s.Group, ID: id}
}

// Key identifies a name together with its id, because several snapshots may have the same name.
func (n SnapshotName) Key() string {
	return SnapshotIntent{Driver: n.Driver, Group: n.Group, Name: n.Name}.Key() + "\x00" + n.ID
}

// Check refuses a name that cannot have been stored.
func (n SnapshotName) Check() error {
	errs := []error{CheckID("snapshot name", n.Name), CheckPluginID(n.PluginID)}
	if n.Driver == "" || n.ID == "" {
		errs = append(errs, Errorf(ErrInvalid, "the name %q is of snapshot %q of driver %q", n.Name, n.ID, n.Driver))
	}
	return errors.Join(errs...)
}

// SnapshotIDs returns the ids that have the given name, sorted.
func SnapshotIDs(names []SnapshotName, driver string, group bool, name string) []string {
	var ids []string
	for _, n := range names {
		if n.Driver == driver && n.Group == group && n.Name == name {
			ids = append(ids, n.ID)
		}
	}

	slices.Sort(ids)
	return slices.Compact(ids)
}

// NameOf returns the name of a snapshot, or "" if none is known. Several names are sorted and
// joined by commas.
func NameOf(names []SnapshotName, driver string, group bool, id string) string {
	var all []string
	for _, n := range names {
		if n.Driver == driver && n.Group == group && n.ID == id {
			all = append(all, n.Name)
		}
	}

	slices.Sort(all)
	return strings.Join(all, ", ")
}
