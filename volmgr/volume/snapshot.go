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

// PendingChange is a requested change of storage whose end the agent has not seen. This alone is
// not a problem.
type PendingChange struct {
	Subject string        // "volume \"data\"", "snapshot \"nightly\""
	Since   time.Time     // zero if unknown
	Message string        // the progress of the change
	Command remedy.Remedy // shows or continues the change
}

// PendingChanges returns all pending changes: those of volumes by id, then those of snapshots,
// oldest first.
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
		add(look, "its storage has %s; what is on it is expanded when it is mounted for writing", Size(e.Node))
	case e.Node > 0:
		add(look, "its storage has %s; what is on it was not expanded to that: %v", Size(e.Node), e.Refused.Err())
	}

	if pairs := v.modifying(); len(pairs) > 0 {
		add(Modify(v.ID, pairs...), "modifying %s was not seen to end, so whether that is in force is not known", strings.Join(pairs, " "))
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
