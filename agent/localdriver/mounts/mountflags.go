package mounts

import (
	"strings"

	"golang.org/x/sys/unix"
)

// MountFlags holds the mount_flags of a capability, separated into those for the mount and those
// for the filesystem.
type MountFlags struct {
	Set, clear uint64   // MOUNT_ATTR_*, properties of a mount
	Fs         []string // all others, for the filesystem: "discard", "commit=30"
}

// attrs are the flags of mount(8) that belong to a mount, not to a filesystem.
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

// ParseMountFlags lets the last of two contradicting flags win, as mount(8) does. One string may
// hold several flags, separated by commas. Commas inside double quotes do not separate, as in
// SELinux' context="system_u:object_r:etc_t:s0:c1,c2".
func ParseMountFlags(flags []string) MountFlags {
	var m MountFlags
	quoted := false
	for _, f := range strings.FieldsFunc(strings.Join(flags, ","), func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ',' && !quoted
	}) {
		f = strings.TrimSpace(strings.ReplaceAll(f, `"`, "")) // the kernel receives the flags one by one
		if f == "" {
			continue
		}

		a, ok := attrs[f]
		if !ok {
			m.Fs = append(m.Fs, f)
			continue
		}

		m.Set = m.Set&^a.clear | a.set
		m.clear |= a.clear // the kernel clears first, then sets
	}

	return m
}

// ReadOnly reports whether a mount with these flags is read-only.
func (m MountFlags) ReadOnly() bool { return m.Set&unix.MOUNT_ATTR_RDONLY != 0 }
