package csitest

import (
	"fmt"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// mountLoopback mounts a directory at path through FUSE. This process serves it, like s3fs, gcsfuse
// and similar plugins: when the process ends, the mount stays and answers ENOTCONN. The process
// serves it until it is unmounted.
func mountLoopback(dir, path string) error {
	root, err := fs.NewLoopbackRoot(dir)
	if err != nil {
		return fmt.Errorf("cannot serve %s: %w", dir, err)
	}

	_, err = fs.Mount(path, root, &fs.Options{MountOptions: fuse.MountOptions{
		FsName: dir, Name: "csitest", AllowOther: true,
		DirectMountStrict: true, // mount(2): no helper program is needed

		// With passthrough, the kernel would read and write open files by itself, even after the
		// end of this process.
		DisabledCapabilities: fuse.CAP_PASSTHROUGH,
	}})
	if err != nil {
		return fmt.Errorf("cannot mount FUSE at %s: %w", path, err)
	}

	return nil
}
