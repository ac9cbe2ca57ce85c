package volume

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/remedy"
)

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
