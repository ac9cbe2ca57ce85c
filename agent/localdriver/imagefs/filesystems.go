// Package imagefs makes, checks, grows and renews the filesystems inside images.
package imagefs

import (
	"slices"
	"strings"
)

// filesystem describes how an image's filesystem is made.
type filesystem struct {
	Name        string
	Pkg         string   // the operating system package with its tools
	MinSize     int64    // bytes
	leastResize int64    // bytes; the kernel refuses to resize to less
	Mkfs        []string // without the file name, which comes last
}

// Filesystems lists the filesystems that an image can hold. The first is the default. The minimum
// sizes are those that the tools accept, rounded up (xfs: 300 MiB since xfsprogs 5.19).
// btrfs_ioctl_resize refuses less than 256 MiB.
var Filesystems = []filesystem{
	{"ext4", "e2fsprogs", 16 << 20, 0, []string{"mkfs.ext4", "-q", "-F", "-m", "0"}},
	{"xfs", "xfsprogs", 300 << 20, 0, []string{"mkfs.xfs", "-q", "-f"}},
	{"btrfs", "btrfs-progs", 128 << 20, 256 << 20, []string{"mkfs.btrfs", "-q", "-f"}},
}

// FindFilesystem returns the filesystem with this name.
func FindFilesystem(name string) (filesystem, bool) {
	i := slices.IndexFunc(Filesystems, func(f filesystem) bool { return f.Name == name })
	if i < 0 {
		return filesystem{}, false
	}
	return Filesystems[i], true
}

// FilesystemNames returns the names of all filesystems, for messages.
func FilesystemNames() string {
	names := make([]string, len(Filesystems))
	for i, f := range Filesystems {
		names[i] = f.Name
	}
	return strings.Join(names, ", ")
}
