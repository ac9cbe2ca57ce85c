package volume

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
)

// SnapshotIntent is the intent to create a snapshot or a group of snapshots. The agent drops the
// intent as soon as the creation is known to have finished, because the plugin then keeps the
// snapshot.
type SnapshotIntent struct {
	PluginID string `json:"plugin_id"`
	Driver   string `json:"driver"`

	// Name is the name of the snapshot in the call to the plugin. A request with the same name
	// continues this intent.
	Name string `json:"name"`

	// Group is set for a group snapshot. A snapshot and a group snapshot may have the same name.
	Group   bool      `json:"group,omitempty"`
	Volumes []string  `json:"volumes"`      // volume ids, in sorted order
	Sources []string  `json:"sources"`      // external ids of the volumes, in the same order
	ID      string    `json:"id,omitempty"` // the plugin's id of the snapshot; empty until it is known
	Since   time.Time `json:"since"`
}

// Key returns the key of the intent. For each name, a driver has at most one snapshot and one
// group.
func (s SnapshotIntent) Key() string {
	kind := "snapshot"
	if s.Group {
		kind = "group"
	}
	return s.Driver + "\x00" + kind + "\x00" + s.Name
}

// Noun returns "snapshot" or "group snapshot".
func (s SnapshotIntent) Noun() string { return noun(s.Group) }

func noun(group bool) string {
	if group {
		return "group snapshot"
	}
	return "snapshot"
}

// Same reports whether two intents with the same name are for the same volumes.
func (s SnapshotIntent) Same(o SnapshotIntent) bool {
	return s.Key() == o.Key() && s.PluginID == o.PluginID && slices.Equal(s.Sources, o.Sources)
}

// Check returns an error if the agent never stores such an intent.
func (s SnapshotIntent) Check() error {
	errs := []error{CheckID("snapshot name", s.Name), CheckPluginID(s.PluginID)}
	if s.Driver == "" || len(s.Volumes) == 0 || len(s.Volumes) != len(s.Sources) {
		errs = append(errs, Errorf(ErrInvalid, "snapshot %q is of %d volumes with %d external ids of driver %q", s.Name, len(s.Volumes), len(s.Sources), s.Driver))
	}
	return errors.Join(errs...)
}

// SnapshotAsk is a request to create a snapshot or a group of snapshots.
type SnapshotAsk struct {
	Volumes    []string // volume ids; only a group may have several
	Group      bool
	Name       string // a request with the same name continues the earlier request
	Parameters map[string]string
	Secrets    map[string]call.SecretRef // secrets that override those of the volumes
}

// MadeSnapshot is a snapshot or a group of snapshots, which may be unfinished. For a group,
// Snapshots holds all members. ID is empty until the plugin returns it.
type MadeSnapshot struct {
	Intent SnapshotIntent
	call.GroupSnapshot
}

// SnapshotsAsk selects the snapshots to list. An empty field excludes no snapshots.
type SnapshotsAsk struct {
	PluginID string
	VolumeID string // id of a volume; the list uses its plugin and its secrets
	Secrets  map[string]call.SecretRef
	// Pending selects only unfinished snapshots. The agent then calls no plugin.
	Pending bool
}

// Snapshots holds the snapshots that plugins list, and the unfinished snapshots.
type Snapshots struct {
	Listed  []ListedSnapshot
	Pending []PendingSnapshot
	// Notes explains which parts of the answer are missing.
	Notes []string
}

// ListedSnapshot is a snapshot that its plugin lists.
type ListedSnapshot struct {
	PluginID, Driver string
	Name             string // empty if the agent does not know the name
	call.Snapshot
}

// PendingSnapshot is an unfinished snapshot that no plugin lists.
type PendingSnapshot struct {
	SnapshotIntent
	Doing string // a description of the agent's current work on the snapshot; may be empty
}

// SnapshotAt identifies a snapshot, or a group snapshot, at a plugin.
type SnapshotAt struct {
	PluginID string
	ID       string
	Group    bool
	Members  []string // the known members, if the object is a group
	Secrets  map[string]call.SecretRef
}

// Noun returns "snapshot" or "group snapshot".
func (r SnapshotAt) Noun() string { return noun(r.Group) }

// SnapshotName is the name with which a snapshot, or a group of snapshots, was created. The agent
// keeps the name after the snapshot is complete, so that users can write the name instead of the
// plugin's id.
type SnapshotName struct {
	PluginID string `json:"plugin_id"`
	Driver   string `json:"driver"`
	Name     string `json:"name"`
	Group    bool   `json:"group,omitempty"`
	ID       string `json:"id"` // the plugin's id of the snapshot
}

// Named returns a SnapshotName with the name of the intent and the id that the plugin returned.
func (s SnapshotIntent) Named(id string) SnapshotName {
	return SnapshotName{PluginID: s.PluginID, Driver: s.Driver, Name: s.Name, Group: s.Group, ID: id}
}

// Key returns a key that contains both name and id, because several snapshots may have the same
// name.
func (n SnapshotName) Key() string {
	return SnapshotIntent{Driver: n.Driver, Group: n.Group, Name: n.Name}.Key() + "\x00" + n.ID
}

// Check returns an error if the agent never stores such a name.
func (n SnapshotName) Check() error {
	errs := []error{CheckID("snapshot name", n.Name), CheckPluginID(n.PluginID)}
	if n.Driver == "" || n.ID == "" {
		errs = append(errs, Errorf(ErrInvalid, "the name %q is of snapshot %q of driver %q", n.Name, n.ID, n.Driver))
	}
	return errors.Join(errs...)
}

// SnapshotIDs returns the sorted ids of the snapshots with the given name.
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

// NameOf returns the name of a snapshot, or "" if the agent knows no name. Several names are sorted
// and joined with commas.
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

// PendingChange is a requested change of storage that may not have finished yet. A pending change
// by itself is not a problem.
type PendingChange struct {
	Subject string        // the object, for example "volume \"data\"" or "snapshot \"nightly\""
	Since   time.Time     // zero if unknown
	Message string        // describes the progress of the change
	Command remedy.Remedy // the command that shows or continues the change
}

// PendingChanges returns all pending changes. The changes of volumes come first, sorted by volume
// id. The changes of snapshots follow, oldest first.
func PendingChanges(volumes []Record, snapshots []SnapshotIntent) []PendingChange {
	var all []PendingChange
	for _, r := range volumes {
		all = append(all, r.Volume.Pending()...)
	}

	slices.SortStableFunc(all, func(a, b PendingChange) int { return cmp.Compare(a.Subject, b.Subject) })
	for _, s := range OldestFirst(snapshots) {
		all = append(all, s.Pending())
	}

	return all
}

// Pending returns the pending changes of a volume.
func (v Volume) Pending() []PendingChange {
	var all []PendingChange
	add := func(command remedy.Remedy, format string, args ...any) {
		all = append(all, PendingChange{Subject: fmt.Sprintf("volume %q", v.ID), Message: fmt.Sprintf(format, args...), Command: command})
	}

	look := remedy.Of(remedy.ShowVolume, v.ID)
	switch e := v.Expansion; {
	case e.Want > 0:
		add(look, "expanding to %s", Size(e.Want))
	case e.nodeWants():
		add(look, "its storage has %s; its contents are expanded when it is mounted for writing", Size(e.Node))
	case e.Node > 0:
		add(look, "its storage has %s; its contents were not expanded to that size: %v", Size(e.Node), e.Refused.Err())
	}

	if pairs := v.modifying(); len(pairs) > 0 {
		add(Modify(v.ID, pairs...), "it is unknown whether modifying %s had an effect", strings.Join(pairs, " "))
	}

	return all
}

// OldestFirst returns the snapshot intents in the order in which they were created.
func OldestFirst(all []SnapshotIntent) []SnapshotIntent {
	return slices.SortedFunc(slices.Values(all), func(a, b SnapshotIntent) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Key(), b.Key()))
	})
}

// Pending returns the intent as a pending change.
func (s SnapshotIntent) Pending() PendingChange {
	how := "whether it was made is not known"
	if s.ID != "" {
		how = fmt.Sprintf("%q has not been seen to be ready", s.ID)
	}

	quoted := make([]string, len(s.Volumes))
	for i, id := range s.Volumes {
		quoted[i] = fmt.Sprintf("%q", id)
	}

	return PendingChange{
		Subject: fmt.Sprintf("%s %q", s.Noun(), s.Name), Since: s.Since,
		Message: fmt.Sprintf("of %s, plugin %q: %s", strings.Join(quoted, ", "), s.PluginID, how),
		Command: remedy.Of(remedy.ListSnapshots, s.PluginID),
	}
}
