package volume

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/volagent/volagent/volmgr/call"
)

// The limits of CSI, in bytes ("Size Limits" and "GetPluginInfo" in the specification). A driver
// may refuse a longer value, cut it or crash.
const (
	MaxMap    = 4 << 10 // all keys and values of a map together
	MaxNodeID = 256     // a node id
	MaxDriver = 63      // the name of a driver
)

// MaxHandle limits the ids that a storage system gives to volumes and snapshots, in bytes. CSI
// allows 128. The resource ids of Azure's disks have about 200, and Kubernetes passes them on, so
// the limit of CSI would refuse volumes that work.
const MaxHandle = 1024

// driverName is CSI's notation: a letter or a digit at both ends, with dashes and dots between.
var driverName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`)

// CheckDriver returns an error unless name is valid for a CSI driver: 1 to 63 letters, digits,
// dashes and dots. The first and the last character must be a letter or a digit.
func CheckDriver(name string) error {
	if len(name) > MaxDriver || !driverName.MatchString(name) {
		return Errorf(ErrInvalid, "%.80q is no name of a CSI driver, which has 1 to %d letters, digits, \"-\" and \".\", and a letter or digit at both ends", name, MaxDriver)
	}
	return nil
}

// TooLong says how a text exceeds a limit of CSI. It returns "" if it does not.
func TooLong(what, text string, most int) string {
	if len(text) <= most {
		return ""
	}
	return fmt.Sprintf("its %s has %d bytes; at most %d are allowed", what, len(text), most)
}

// TooLarge says how a map exceeds the limit of CSI. It returns "" if it does not.
func TooLarge(what string, m map[string]string) string {
	n := 0
	for k, v := range m {
		n += len(k) + len(v)
	}

	if n <= MaxMap {
		return ""
	}
	return fmt.Sprintf("its %s has %d bytes; CSI allows %d", what, n, MaxMap)
}

// CheckLimits refuses a new volume with values that are too large for CSI calls. A volume that is
// already stored keeps its values.
func (v Volume) CheckLimits() error {
	bad := []string{
		TooLong("external_id", v.ExternalID, MaxHandle), TooLong("snapshot_id", v.SnapshotID, MaxHandle), TooLong("clone_id", v.CloneID, MaxHandle),
		TooLarge("parameters", v.Parameters), TooLarge("mutable_parameters", v.Mutable), TooLarge("context", v.Context),
	}

	for _, words := range bad {
		if words != "" {
			return Errorf(ErrInvalid, "volume %q cannot be handed to a plugin: %s", v.ID, words)
		}
	}

	return nil
}

// CheckCapability refuses unknown modes.
func CheckCapability(c call.Capability) error {
	if !slices.Contains(call.AccessModes, c.Access) {
		return Errorf(ErrInvalid, "unknown access mode %q", c.Access).WithHint("one of %v", call.AccessModes)
	}
	if c.Attachment != call.FileSystem && c.Attachment != call.BlockDevice {
		return Errorf(ErrInvalid, "unknown attachment mode %q", c.Attachment).WithHint("%s or %s", call.FileSystem, call.BlockDevice)
	}
	return nil
}
