package mount

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
)

// Options holds the requested options of a bind mount.
type Options struct {
	ReadOnly bool
	// Flags are mount options, named as in mount(8): nosuid, nodev, noexec, nosymfollow,
	// nodiratime, and noatime, relatime or strictatime.
	Flags []string
}

// attrs maps mount options to the bits of mount_setattr(2).
var attrs = map[string]uint64{
	"nosuid": unix.MOUNT_ATTR_NOSUID, "nodev": unix.MOUNT_ATTR_NODEV, "noexec": unix.MOUNT_ATTR_NOEXEC,
	"nosymfollow": unix.MOUNT_ATTR_NOSYMFOLLOW, "nodiratime": unix.MOUNT_ATTR_NODIRATIME,
	"noatime": unix.MOUNT_ATTR_NOATIME, "strictatime": unix.MOUNT_ATTR_STRICTATIME, "relatime": unix.MOUNT_ATTR_RELATIME,
}

// mountOptions maps mount options to the flags of mount(2).
var mountOptions = map[string]uintptr{
	"nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC,
	"noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME,
	"nosymfollow": unix.MS_NOSYMFOLLOW, "strictatime": unix.MS_STRICTATIME,
}

// attr returns the argument of mount_setattr(2) that sets the options.
func (l Options) attr() (unix.MountAttr, error) {
	var a unix.MountAttr
	if l.ReadOnly {
		a.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	for _, f := range l.Flags {
		bit, ok := attrs[f]
		if !ok {
			return a, fmt.Errorf("unknown mount option %q", f)
		}

		a.Attr_set |= bit
		if f == "noatime" || f == "relatime" || f == "strictatime" {
			a.Attr_clr |= unix.MOUNT_ATTR__ATIME
		}
	}

	return a, nil
}

// has reports whether a mount with the attributes attr has the requested options.
func (l Options) has(attr uint64) bool {
	want, err := l.attr()
	if err != nil {
		return false
	}
	if want.Attr_clr != 0 && (attr^want.Attr_set)&unix.MOUNT_ATTR__ATIME != 0 {
		return false
	}
	return attr&want.Attr_set == want.Attr_set
}

// remountFlags returns the flags with which mount(2) adds the requested options to a mount. The
// parameter current contains the options that the mount already has. The flags repeat these
// options, because mount(2) clears every omitted option.
func (l Options) remountFlags(current string) uintptr {
	const times = unix.MS_NOATIME | unix.MS_RELATIME | unix.MS_STRICTATIME
	var have, want uintptr
	for name, flag := range mountOptions {
		if hasOption(current, name) {
			have |= flag
		}
	}

	for _, name := range l.Flags {
		want |= mountOptions[name]
	}

	if want&times != 0 {
		have &^= times
	}
	flags := unix.MS_REMOUNT | unix.MS_BIND | have | want
	if l.ReadOnly || hasOption(current, "ro") {
		flags |= unix.MS_RDONLY
	}
	if flags&times == 0 {
		flags |= unix.MS_STRICTATIME
	}
	return flags
}

// attrOf returns the attributes of a mount, read from its line in the mount table.
func attrOf(m *proc.Mount) (attr uint64) {
	for name, bit := range attrs {
		if hasOption(m.Options, name) {
			attr |= bit
		}
	}

	if hasOption(m.Options, "ro") {
		attr |= unix.MOUNT_ATTR_RDONLY
	}
	if attr&unix.MOUNT_ATTR__ATIME == 0 && !hasOption(m.Options, "relatime") {
		attr |= unix.MOUNT_ATTR_STRICTATIME // the table shows strictatime by omitting noatime and relatime
	}
	return attr
}

// hasOption reports whether a comma-separated list contains an option.
func hasOption(options, name string) bool {
	return slices.Contains(strings.Split(options, ","), name)
}
