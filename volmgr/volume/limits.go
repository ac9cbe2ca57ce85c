package volume

import (
	"fmt"
	"regexp"
)

// Limits of CSI, in bytes ("Size Limits" and "GetPluginInfo" in the specification). A
// driver may refuse, cut or crash on what is longer.
const (
	MaxMap    = 4 << 10 // all keys and values of a map together
	MaxNodeID = 256     // a node id
	MaxDriver = 63      // the name of a driver
)

// MaxHandle bounds the ids that a storage system gives to volumes and snapshots, in bytes. CSI
// allows 128, but the resource ids of Azure's disks have about 200 and Kubernetes passes them on,
// so a volume of theirs would be refused for no good.
const MaxHandle = 1024

// driverName is CSI's notation: it begins and ends with a letter or a digit, and has
// dashes and dots between.
var driverName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`)

// CheckDriver refuses what cannot be the name of a CSI driver: 1 to 63 letters, digits,
// dashes and dots, of which the first and the last is a letter or a digit.
func CheckDriver(name string) error {
	if len(name) > MaxDriver || !driverName.MatchString(name) {
		return Errorf(ErrInvalid, "%.80q is no name of a CSI driver, which has 1 to %d letters, digits, \"-\" and \".\", and a letter or digit at both ends", name, MaxDriver)
	}
	return nil
}

// TooLong says how a text goes beyond a limit of CSI; empty if it does not.
func TooLong(what, text string, most int) string {
	if len(text) <= most {
		return ""
	}
	return fmt.Sprintf("its %s has %d bytes; at most %d are allowed", what, len(text), most)
}

// TooLarge says how a map goes beyond CSI's limit; empty if it does not.
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

// CheckLimits refuses a new volume with values that are too large for CSI calls. A
// volume that is stored already keeps the values that it has.
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
