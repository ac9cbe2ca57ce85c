package localdriver

import (
	"slices"
	"strings"
)

// filesystem describes how an image's filesystem is made.
type filesystem struct {
	name        string
	pkg         string   // the operating system package with its tools
	minSize     int64    // bytes
	leastResize int64    // bytes; the kernel refuses to resize to less
	mkfs        []string // without the file name, which comes last
}

// filesystems lists the filesystems that an image can hold. The first is the default. The minimum
// sizes are those that the tools accept, rounded up (xfs: 300 MiB since xfsprogs 5.19).
// btrfs_ioctl_resize refuses less than 256 MiB.
var filesystems = []filesystem{
	{"ext4", "e2fsprogs", 16 << 20, 0, []string{"mkfs.ext4", "-q", "-F", "-m", "0"}},
	{"xfs", "xfsprogs", 300 << 20, 0, []string{"mkfs.xfs", "-q", "-f"}},
	{"btrfs", "btrfs-progs", 128 << 20, 256 << 20, []string{"mkfs.btrfs", "-q", "-f"}},
}

func findFilesystem(name string) (filesystem, bool) {
	i := slices.IndexFunc(filesystems, func(f filesystem) bool { return f.name == name })
	if i < 0 {
		return filesystem{}, false
	}
	return filesystems[i], true
}

func filesystemNames() string {
	names := make([]string, len(filesystems))
	for i, f := range filesystems {
		names[i] = f.name
	}
	return strings.Join(names, ", ")
}
