package localdriver

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// access is a parsed volume capability.
type access struct {
	block      bool
	fsType     string // as requested; if empty, the volume decides
	flags      mounts.MountFlags
	readerOnly bool
	manyPaths  bool // may be published at more than one target
	group      int  // the group that must own the volume; -1 for none
}

// defaultFlags come before the mount_flags of a capability, which may revoke them with suid and
// dev. They keep a person who writes to a volume from gaining power over the host through
// set-user-ID files and devices.
var defaultFlags = []string{"nosuid", "nodev"}

// parseAccess parses a capability. It returns INVALID_ARGUMENT for a capability that the driver
// never supports.
func parseAccess(c *csi.VolumeCapability) (access, error) {
	a := access{group: -1}
	switch mode := c.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		a.manyPaths = true
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:
		a.readerOnly = true
	case csi.VolumeCapability_AccessMode_UNKNOWN:
		return a, csierr.Invalidf("the capability has no access mode")
	default:
		return a, csierr.Invalidf("access mode %s is not possible: a local volume is on one node only", mode)
	}

	switch {
	case c.GetBlock() != nil:
		a.block = true
	case c.GetMount() != nil:
		var err error
		if a.group, err = parseGroup(c.GetMount().GetVolumeMountGroup()); err != nil {
			return a, err
		}
		a.fsType = c.GetMount().GetFsType()
		a.flags = mounts.ParseMountFlags(slices.Concat(defaultFlags, c.GetMount().GetMountFlags()))
	default:
		return a, csierr.Invalidf("the capability says neither mount nor block")
	}

	return a, nil
}

// parseAccessFor parses a capability for use with one volume. It returns FAILED_PRECONDITION if the
// volume was not created for that capability.
func parseAccessFor(v store.Volume, c *csi.VolumeCapability) (access, error) {
	if c == nil {
		return access{}, csierr.Invalidf("the volume capability is missing")
	}

	a, err := parseAccess(c)
	if err != nil {
		return a, err
	}

	switch {
	case a.block && !v.Block:
		return a, csierr.Preconditionf("volume %q was not created for block access", v.ID)
	case !a.block && v.Type == store.TypeImage && v.FSType == "":
		return a, csierr.Preconditionf("volume %q was created for block access only and holds no filesystem of ours", v.ID)
	case a.fsType != "" && a.fsType != v.FSType:
		return a, csierr.Preconditionf("volume %q cannot be mounted as %q: %s", v.ID, a.fsType, v.Describe())
	case v.Type == store.TypeDirectory && len(a.flags.Fs) > 0:
		return a, csierr.Invalidf("mount flag %q belongs to a filesystem, and volume %q is a directory; it takes ro, nosuid, nodev, noexec, noatime, nodiratime, nosymfollow and their opposites",
			a.flags.Fs[0], v.ID)
	}

	return a, nil
}
