package csitest

import (
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// storage checks requests that concern the storage of volumes.
func (c *check) storage() {
	call := c.r.call
	if len(call.Mutable) > 0 && !c.cfg.Modify && call.Method != ControllerModify {
		c.report(RuleOffered, "mutable_parameters is set, but the plugin has no MODIFY_VOLUME")
	}
	if c.r.size != nil || call.Method == ControllerExpand {
		c.capacityRange()
	}
	if call.Entries < 0 {
		c.report(RuleRequired, "max_entries is %d", call.Entries)
	}
	if call.Token != "" && !c.view.tokens[call.Method+" "+call.Token] {
		c.report(RuleToken, "the starting_token %q comes from no answer to %s", call.Token, call.Method)
	}

	switch m := c.r.msg.(type) {
	case *csi.ControllerModifyVolumeRequest:
		if len(call.Mutable) == 0 {
			c.report(RuleRequired, "mutable_parameters is not set")
		}
	case *csi.GetCapacityRequest:
		if m.GetAccessibleTopology() != nil && c.cfg.Topology == nil {
			c.report(RuleOffered, "accessible_topology is set, but the plugin has no VOLUME_ACCESSIBILITY_CONSTRAINTS")
		}
	case *csi.CreateSnapshotRequest:
		if m.GetAccessibilityRequirements() != nil {
			c.report(RuleOffered, "accessibility_requirements is set, but the plugin has no SNAPSHOT_ACCESSIBILITY_CONSTRAINTS")
		}
	}

	c.snapshots()
}

// capacityRange checks that a capacity range has a lower or an upper limit. The request for an
// expansion must have a capacity range.
func (c *check) capacityRange() {
	least, most := c.r.call.Least, c.r.call.Most
	switch {
	case c.r.size == nil:
		c.report(RuleRequired, "capacity_range is not set")
	case least < 0 || most < 0 || (most > 0 && least > most):
		c.report(RuleRequired, "the capacity range from %d to %d is invalid", least, most)
	case least == 0 && most == 0:
		c.report(RuleRequired, "the capacity range has no limit")
	}
}

func (c *check) snapshots() {
	call := c.r.call
	switch call.Method {
	case CreateGroupSnapshot:
		if len(call.Sources) == 0 {
			c.report(RuleRequired, "source_volume_ids is not set")
		}
	case DeleteGroupSnapshot, GetGroupSnapshot:
		known, ok := c.view.groups[call.Group]
		switch {
		case len(call.Members) == 0:
			c.report(RuleRequired, "snapshot_ids is not set")
		case ok && !slices.Equal(known, slices.Sorted(slices.Values(call.Members))):
			c.report(RuleOrder, "the request names the snapshots %q, but the group has %q", call.Members, known)
		}
	case DeleteSnapshot:
		for id, members := range c.view.groups {
			if slices.Contains(members, call.Snapshot) {
				c.report(RuleOrder, "the snapshot belongs to group snapshot %q, but is deleted alone", id)
			}
		}
	case CreateVolume:
		if ready, known := c.view.snaps[call.Snapshot]; known && !ready {
			c.report(RuleOrder, "the plugin did not report snapshot %q as ready", call.Snapshot)
		}
	}
}

// contentSource checks the source from which a new volume is created.
func (c *check) contentSource(s *csi.VolumeContentSource) {
	switch {
	case s == nil:
	case s.GetSnapshot() != nil && !c.cfg.Snapshot:
		c.report(RuleOffered, "volume_content_source is a snapshot, but the plugin has no CREATE_DELETE_SNAPSHOT")
	case s.GetVolume() != nil && !c.cfg.Clone:
		c.report(RuleOffered, "volume_content_source is a volume, but the plugin has no CLONE_VOLUME")
	case s.GetSnapshot().GetSnapshotId() == "" && s.GetVolume().GetVolumeId() == "":
		c.report(RuleRequired, "volume_content_source is set without a source")
	}
}

// stagingField checks the staging path in calls for an existing volume. If the plugin has no
// NodeStage, the path must be empty. Otherwise it must be the staging path of the volume.
func (c *check) stagingField(vol *volumeView) {
	if c.r.call.StagingPath != "" && !c.cfg.Stage {
		c.report(RuleOffered, "staging_target_path is set, but the plugin has no STAGE_UNSTAGE_VOLUME")
		return
	}
	c.onePath(vol)
}

// controllerExpand checks that a volume is not in use if the plugin expands only OFFLINE.
func (c *check) controllerExpand(vol *volumeView) {
	if c.cfg.Offline && vol.inUse() {
		c.report(RuleOffline, "the plugin only expands OFFLINE, but the volume is in use: %s", vol.use())
	}
}

// nodeExpand checks that the controller has already enlarged the storage, and that the volume is
// mounted at the given path.
func (c *check) nodeExpand(vol *volumeView) {
	c.stagingField(vol)
	call := c.r.call
	at, as := vol.targets[call.TargetPath], vol.stagedAs

	switch {
	case c.cfg.Stage && vol.staged != yes:
		c.report(RuleOrder, "the volume is %s staged", vol.staged)
	case c.cfg.Stage && call.TargetPath == vol.staging:
	case at == nil:
		c.report(RuleOrder, "the volume is neither staged nor published at %q", call.TargetPath)
	case at.is != yes:
		c.report(RuleOrder, "the volume is %s published at %q", at.is, call.TargetPath)
	default:
		as = at.as
	}

	if as != "" && call.Capability != "" && call.Capability != as {
		c.report(RuleCapability, "the capability is %q, but the volume is mounted as %q", call.Capability, as)
	}
	if c.cfg.Expand && hasController(c.cfg) && !vol.expands {
		c.report(RuleOrder, "no ControllerExpandVolume reported that the node must expand the volume")
	}
}

// mountGroup checks that NodePublish and NodeStage have the same mount group.
func (c *check) mountGroup(vol *volumeView) {
	if group := c.r.call.MountGroup; vol.staged == yes && group != vol.stagedGroup {
		c.report(RuleCapability, "the mount group is %q, but the volume is staged with %q", group, vol.stagedGroup)
	}
}

// storageEnd updates the view after an OK answer that the caller received in time.
func (v view) storageEnd(c Call) {
	if c.Next != "" {
		v.tokens[fmt.Sprintf("%s %s", c.Method, c.Next)] = true
	}

	for id, ready := range c.Snapshots {
		v.snaps[id] = ready
	}

	switch c.Method {
	case CreateGroupSnapshot, GetGroupSnapshot:
		var members []string
		for id := range c.Snapshots {
			members = append(members, id)
		}

		slices.Sort(members)
		v.groups[c.Group] = members
	case DeleteSnapshot:
		delete(v.snaps, c.Snapshot)
	case DeleteGroupSnapshot:
		for _, id := range v.groups[c.Group] {
			delete(v.snaps, id)
		}

		delete(v.groups, c.Group)
	case ControllerExpand:
		vol := v.of(c.Volume)
		vol.expands = vol.expands || c.NodeRequired
	}
}
