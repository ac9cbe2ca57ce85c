package csitest

import (
	"fmt"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// mountLoopback mounts a directory at path through FUSE. Like s3fs, gcsfuse and similar plugins,
// this process serves the mount until it is unmounted. If the process ends earlier, the mount
// remains, and accesses fail with ENOTCONN.
func mountLoopback(dir, path string) error {
	root, err := fs.NewLoopbackRoot(dir)
	if err != nil {
		return fmt.Errorf("cannot serve %s: %w", dir, err)
	}

	_, err = fs.Mount(path, root, &fs.Options{MountOptions: fuse.MountOptions{
		FsName: dir, Name: "csitest", AllowOther: true,
		DirectMountStrict: true, // calls mount(2) directly, without a helper program

		// With passthrough, the kernel would read and write open files without this process, even
		// after the process has ended.
		DisabledCapabilities: fuse.CAP_PASSTHROUGH,
	}})
	if err != nil {
		return fmt.Errorf("cannot mount FUSE at %s: %w", path, err)
	}

	return nil
}
