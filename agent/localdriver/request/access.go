// Package request checks and parses the parameters, capabilities and sizes of CSI requests, and plans
// volumes from them.
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
	fsType     string // the requested filesystem; if empty, the volume decides
	Flags      mounts.MountFlags
	ReaderOnly bool
	ManyPaths  bool // may be published at more than one target
	Group      int  // the group to which the volume must belong; -1 for none
}

// defaultFlags come before the mount_flags of a capability, which may revoke them with suid and
// dev. They prevent a user who can write to a volume from gaining root rights on the host through
// set-user-ID files and devices.
var defaultFlags = []string{"nosuid", "nodev"}

// parseAccess parses a capability. It returns INVALID_ARGUMENT for a capability that the driver
// never supports.
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

// ParseAccessFor parses a capability for use with one volume. It returns FAILED_PRECONDITION if the
// volume was not created for that capability.
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

// parseGroup parses a volume_mount_group, a numeric group id. It returns -1 for an empty one.
func parseGroup(group string) (int, error) {
	if group == "" {
		return -1, nil
	}
	gid, err := strconv.ParseUint(group, 10, 32)
	if err != nil || gid == math.MaxUint32 { // chown takes this value as "unchanged"
		return -1, csierr.Invalidf("volume_mount_group %q is not the number of a group", group)
	}
	return int(gid), nil
}
