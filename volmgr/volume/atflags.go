package volume

import (
	"slices"
	"strings"
)

// atFlags are the options that the mount at a claim's own directory may have, as mount(8) spells
// them. The last three exclude each other.
var atFlags = []string{"nosuid", "nodev", "noexec", "nosymfollow", "nodiratime", "noatime", "relatime", "strictatime"}

// AtFlags checks the mount options for a claim's own directory and joins them with commas. Each
// option appears once and in a fixed order, so that two lists of the same options are equal.
// AtFlags returns ErrInvalid for an unknown option, and for more than one of noatime, relatime and
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

// Flags returns the options of the mount at the claim's own directory.
func (c Claim) Flags() []string {
	if c.AtFlags == "" {
		return nil
	}
	return strings.Split(c.AtFlags, ",")
}

// TargetFlags returns the options that the mount at the claim's target gets in addition to those of
// the plugin. These are nosuid and nodev, unless the volume's mount flags say suid or dev. The
// options of the claim's own directory are added, because the target shows the same files.
func (c Claim) TargetFlags(mountFlags []string) []string {
	var flags []string
	for _, f := range []string{"nosuid", "nodev"} {
		if !lifted(f, mountFlags) {
			flags = append(flags, f)
		}
	}

	for _, f := range c.Flags() {
		if !slices.Contains(flags, f) {
			flags = append(flags, f)
		}
	}

	return flags
}

// lifted reports whether the mount flags cancel a default such as nosuid. Of the flag and its
// opposite, suid, the last one counts. One string may hold several flags, separated by commas.
// Commas in double quotes belong to a value.
func lifted(flag string, mountFlags []string) bool {
	opposite, quoted, is := strings.TrimPrefix(flag, "no"), false, false
	for _, f := range strings.FieldsFunc(strings.Join(mountFlags, ","), func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ',' && !quoted
	}) {
		switch strings.TrimSpace(f) {
		case opposite:
			is = true
		case flag:
			is = false
		}
	}

	return is
}
