// Package imagefs makes, checks and grows the filesystems inside images. It also makes the
// filesystem of a copy independent of its source.
package imagefs

import (
	"slices"
	"strings"
)

// filesystem describes how the driver makes a filesystem in an image.
type filesystem struct {
	Name        string
	Pkg         string   // the operating system's package that contains the tools
	MinSize     int64    // minimum size in bytes
	leastResize int64    // the smallest size in bytes to which the kernel can resize the filesystem
	Mkfs        []string // the command that makes the filesystem; the path of the image is appended
}

// Filesystems lists the filesystems that an image can contain. The first one is the default. The
// minimum sizes are those that the tools accept, rounded up. For example, mkfs.xfs requires 300 MiB
// since xfsprogs 5.19. btrfs_ioctl_resize refuses sizes below 256 MiB.
var Filesystems = []filesystem{
	{"ext4", "e2fsprogs", 16 << 20, 0, []string{"mkfs.ext4", "-q", "-F", "-m", "0"}},
	{"xfs", "xfsprogs", 300 << 20, 0, []string{"mkfs.xfs", "-q", "-f"}},
	{"btrfs", "btrfs-progs", 128 << 20, 256 << 20, []string{"mkfs.btrfs", "-q", "-f"}},
}

// FindFilesystem returns the filesystem with the given name.
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
