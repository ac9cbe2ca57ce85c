package csitest

import (
	"fmt"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// mountLoopback mounts a directory at path through FUSE. This process serves it,
// as those of s3fs, gcsfuse and the like do in their plugins: when it ends the
// mount is there and answers ENOTCONN. It is served until it is unmounted.
func mountLoopback(dir, path string) error {
	root, err := fs.NewLoopbackRoot(dir)
	if err != nil {
		return fmt.Errorf("cannot serve %s: %w", dir, err)
	}
	_, err = fs.Mount(path, root, &fs.Options{MountOptions: fuse.MountOptions{
		FsName: dir, Name: "csitest", AllowOther: true,
		DirectMountStrict: true, // mount(2): no helper need be installed
		// Else the kernel reads and writes open files by itself, also when this
		// process has ended.
		DisabledCapabilities: fuse.CAP_PASSTHROUGH,
	}})
	if err != nil {
		return fmt.Errorf("cannot mount FUSE at %s: %w", path, err)
	}
	return nil
}
