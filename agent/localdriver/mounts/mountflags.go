package mounts

import (
	"strings"

	"golang.org/x/sys/unix"
)

// MountFlags contains the mount_flags of a capability. It separates the flags of the mount from the
// flags of the filesystem.
type MountFlags struct {
	Set, clear uint64 // MOUNT_ATTR_* flags, which belong to the mount
	// all other flags, which belong to the filesystem, such as "discard" or "commit=30"
	Fs []string
}

// attrs contains the flags of mount(8) that belong to a mount and not to a filesystem.
var attrs = map[string]struct{ set, clear uint64 }{
	"defaults":    {},
	"rw":          {clear: unix.MOUNT_ATTR_RDONLY},
	"ro":          {set: unix.MOUNT_ATTR_RDONLY},
	"suid":        {clear: unix.MOUNT_ATTR_NOSUID},
	"nosuid":      {set: unix.MOUNT_ATTR_NOSUID},
	"dev":         {clear: unix.MOUNT_ATTR_NODEV},
	"nodev":       {set: unix.MOUNT_ATTR_NODEV},
	"exec":        {clear: unix.MOUNT_ATTR_NOEXEC},
	"noexec":      {set: unix.MOUNT_ATTR_NOEXEC},
	"diratime":    {clear: unix.MOUNT_ATTR_NODIRATIME},
	"nodiratime":  {set: unix.MOUNT_ATTR_NODIRATIME},
	"symfollow":   {clear: unix.MOUNT_ATTR_NOSYMFOLLOW},
	"nosymfollow": {set: unix.MOUNT_ATTR_NOSYMFOLLOW},
	"relatime":    {set: unix.MOUNT_ATTR_RELATIME, clear: unix.MOUNT_ATTR__ATIME},
	"noatime":     {set: unix.MOUNT_ATTR_NOATIME, clear: unix.MOUNT_ATTR__ATIME},
	"strictatime": {set: unix.MOUNT_ATTR_STRICTATIME, clear: unix.MOUNT_ATTR__ATIME},
}

// ParseMountFlags parses mount flags. If two flags contradict each other, the last one counts, as
// for mount(8). One string may contain several flags, separated by commas. A comma inside double
// quotes is not a separator, as in SELinux's context="system_u:object_r:etc_t:s0:c1,c2".
func ParseMountFlags(flags []string) MountFlags {
	var m MountFlags
	quoted := false
	for _, f := range strings.FieldsFunc(strings.Join(flags, ","), func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ',' && !quoted
	}) {
		// the kernel receives each flag separately, so it needs no quotes
		f = strings.TrimSpace(strings.ReplaceAll(f, `"`, ""))
		if f == "" {
			continue
		}

		a, ok := attrs[f]
		if !ok {
			m.Fs = append(m.Fs, f)
			continue
		}

		m.Set = m.Set&^a.clear | a.set
		m.clear |= a.clear // the kernel first clears flags, and then sets flags
	}

	return m
}

// ReadOnly reports whether a mount with these flags is read-only.
func (m MountFlags) ReadOnly() bool { return m.Set&unix.MOUNT_ATTR_RDONLY != 0 }
