package provision

import (
	"fmt"
	"slices"

	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// DescribeLeftovers lists the mounts, pending calls and storage that may remain after the agent
// forgets the record.
func DescribeLeftovers(r volume.Record) []string {
	var left []string
	add := func(format string, args ...any) { left = append(left, fmt.Sprintf(format, args...)) }
	for _, c := range r.Ordered() {
		if c.Bound != volume.Absent {
			add("%s may still be mounted (bound for %q)", c.At, c.Alloc)
		}
		if c.Published != volume.Absent {
			add("%s may still be mounted (published for %q)", c.Target, c.Alloc)
		}
	}

	if r.Node.Staged != volume.Absent {
		add("%s may still be mounted (staged)", r.Node.StagingPath)
	}
	for _, d := range r.Node.PendingCalls {
		add("pending call to plugin %q: %s %s", r.Volume.PluginID, d.Kind, d.Path)
	}
	if r.Node.Attached != volume.Absent {
		add("external_id %q may still be attached to node %q", r.Volume.ExternalID, r.Node.NodeID)
	}
	switch r.Volume.Provision {
	case volume.Provisioning:
		add("plugin %q may have made a volume named %q", r.Volume.PluginID, r.Volume.Name)
	case volume.Deleting:
		add("plugin %q may still have, or may have deleted, external_id %q", r.Volume.PluginID, r.Volume.ExternalID)
	}

	return left
}

// leftovers returns the leftover records of the volume with the given id.
func leftovers(tx Tx, id string) []volume.Record {
	return slices.DeleteFunc(tx.Leftovers(), func(r volume.Record) bool { return r.Volume.ID != id })
}

// unguard makes the own directories of a volume writable before the agent forgets the volume. It
// does nothing if check returns an error for the record. It also does nothing if the volume may
// still have mounts on this host, because the leftover record then names the directories. If the
// agent keeps the volume after all, the next mount guards the directories again. The result
// describes each directory that stays immutable.
func (s *common) unguard(id string, check func(volume.Record) error) (left []string) {
	r, ok := s.Store.Volume(id)
	if !ok || r.Held() || check(volume.Past(r, s.Owners)) != nil {
		return nil
	}
	return s.unguardAll(r, id)
}

// unguardLast makes the directories of a forgotten volume writable, unless another record still
// names them. It runs after the agent has deleted the record. Two volumes that name the same
// directory may be forgotten at the same time. In this case, unguard sees the record of the other
// volume and keeps the directory guarded.
func (s *common) unguardLast(gone volume.Record) (left []string) {
	left = s.unguardAll(gone, "")
	if !gone.Leftover && !gone.Held() {
		return nil // unguard has already reported these directories
	}

	return left
}

// unguardAll makes the directories of a record writable. It skips a directory that the record of
// another volume names, but ignores the record of the volume with the id except. The result
// describes each directory that stays immutable.
func (s *common) unguardAll(r volume.Record, except string) (left []string) {
	for _, dir := range r.AllGuards() {
		if err := s.Guards.Unguard(dir, except); err != nil {
			left = append(left, fmt.Sprintf("%v; the directory stays immutable until: %s", err, suggest.Command("chattr -i %s", dir.Path)))
		}
	}

	return left
}
