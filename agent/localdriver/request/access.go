// Package request checks and parses the parameters, capabilities and sizes in CSI requests. It also
// plans the volumes that create requests describe.
package request

import (
	"math"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// Access is a parsed volume capability.
type Access struct {
	Block      bool
	fsType     string // the requested filesystem; if empty, any filesystem fits
	Flags      mounts.MountFlags
	ReaderOnly bool
	ManyPaths  bool // the volume may be published at more than one target
	Group      int  // the id of the group to which the volume must belong; -1 for none
}

// defaultFlags are applied before the mount_flags of a capability. So "suid" and "dev" in
// mount_flags revoke them. The default flags prevent a user who can write to a volume from gaining
// root rights on the host through set-user-ID files and devices.
var defaultFlags = []string{"nosuid", "nodev"}

// parseAccess parses a capability. It returns INVALID_ARGUMENT for a capability that the driver
// supports for no volume.
func parseAccess(c *csi.VolumeCapability) (Access, error) {
	a := Access{Group: -1}
	switch mode := c.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		a.ManyPaths = true
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:
		a.ReaderOnly = true
	case csi.VolumeCapability_AccessMode_UNKNOWN:
		return a, csierr.Invalidf("the capability has no access mode")
	default:
		return a, csierr.Invalidf("access mode %s is not possible: a local volume is on one node only", mode)
	}

	switch {
	case c.GetBlock() != nil:
		a.Block = true
	case c.GetMount() != nil:
		var err error
		if a.Group, err = parseGroup(c.GetMount().GetVolumeMountGroup()); err != nil {
			return a, err
		}
		a.fsType = c.GetMount().GetFsType()
		a.Flags = mounts.ParseMountFlags(slices.Concat(defaultFlags, c.GetMount().GetMountFlags()))
	default:
		return a, csierr.Invalidf("the capability says neither mount nor block")
	}

	return a, nil
}

// ParseAccessFor parses a capability for use with an existing volume. It returns
// FAILED_PRECONDITION if the volume was not created for this capability.
func ParseAccessFor(v store.Volume, c *csi.VolumeCapability) (Access, error) {
	if c == nil {
		return Access{}, csierr.Invalidf("the volume capability is missing")
	}

	a, err := parseAccess(c)
	if err != nil {
		return a, err
	}

	switch {
	case a.Block && !v.Block:
		return a, csierr.Preconditionf("volume %q was not created for block access", v.ID)
	case !a.Block && v.Type == store.TypeImage && v.FSType == "":
		return a, csierr.Preconditionf("volume %q was created for block access only and holds no filesystem of ours", v.ID)
	case a.fsType != "" && a.fsType != v.FSType:
		return a, csierr.Preconditionf("volume %q cannot be mounted as %q: %s", v.ID, a.fsType, v.Describe())
	case v.Type == store.TypeDirectory && len(a.Flags.Fs) > 0:
		return a, csierr.Invalidf("mount flag %q belongs to a filesystem, and volume %q is a directory; it takes ro, nosuid, nodev, noexec, noatime, nodiratime, nosymfollow and their opposites",
			a.Flags.Fs[0], v.ID)
	}

	return a, nil
}

// parseGroup parses the numeric group id in volume_mount_group. It returns -1 if volume_mount_group
// is empty.
func parseGroup(group string) (int, error) {
	if group == "" {
		return -1, nil
	}
	gid, err := strconv.ParseUint(group, 10, 32)
	// for chown, this value means that the group stays unchanged
	if err != nil || gid == math.MaxUint32 {
		return -1, csierr.Invalidf("volume_mount_group %q is not the number of a group", group)
	}
	return int(gid), nil
}
