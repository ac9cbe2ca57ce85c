package volume

import (
	"slices"
	"strings"
)

// atFlags are the options that the mount at a claim's own directory may have, in the
// words of mount(8). The last three exclude each other.
var atFlags = []string{"nosuid", "nodev", "noexec", "nosymfollow", "nodiratime", "noatime", "relatime", "strictatime"}

// AtFlags checks mount options for a claim's own directory and joins them with commas,
// each once and in one order, so that two lists of the same options are equal. It
// refuses with ErrInvalid what is none, and more than one of noatime, relatime and
// strictatime.
func AtFlags(flags []string) (string, error) {
	for _, f := range flags {
		if !slices.Contains(atFlags, f) {
			return "", Errorf(ErrInvalid, "unknown option %q for a mount point; one of %s", f, strings.Join(atFlags, ", ")).
				WithHint("options of the volume's file system belong in mount_flags; read-only is read_only")
		}
	}
	sorted := slices.DeleteFunc(slices.Clone(atFlags), func(f string) bool { return !slices.Contains(flags, f) })
	var times []string
	for _, f := range sorted {
		if f == "noatime" || f == "relatime" || f == "strictatime" {
			times = append(times, f)
		}
	}
	if len(times) > 1 {
		return "", Errorf(ErrInvalid, "a mount has one of the options %s, not all", strings.Join(times, ", "))
	}
	return strings.Join(sorted, ","), nil
}

// Flags are the options of the mount at the claim's own directory.
func (c Claim) Flags() []string {
	if c.AtFlags == "" {
		return nil
	}
	return strings.Split(c.AtFlags, ",")
}
