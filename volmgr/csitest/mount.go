package csitest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// sight describes the paths of a call, as they are when the call arrives.
type sight struct {
	stagingDir   bool
	targetParent bool
	targetExists bool
}

func look(c Call) sight {
	var s sight
	isDir := func(path string) bool {
		info, err := os.Lstat(path)
		return err == nil && info.IsDir()
	}
	switch c.Method {
	case NodeStage:
		s.stagingDir = isDir(c.StagingPath)
	case NodePublish:
		s.targetParent = isDir(filepath.Dir(c.TargetPath))
		_, err := os.Lstat(c.TargetPath)
		s.targetExists = err == nil || !errors.Is(err, unix.ENOENT)
	}

	return s
}

// isMount reports whether path is a mount point. It also returns true for a mount that does not
// answer, such as a dead or hanging FUSE mount.
func isMount(path string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	if err != nil {
		return !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR)
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// bind bind-mounts source at target, which must exist.
func bind(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot bind %s at %s: %w", source, target, err)
	}
	return nil
}

// makeReadOnly prevents writes through the mount at target, but not through other mounts.
func makeReadOnly(target string) error {
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("cannot make %s read-only: %w", target, err)
	}
	return nil
}

// unmountAll unmounts every mount at path. It succeeds if path has no mount.
func unmountAll(path string) error {
	for isMount(path) {
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("cannot unmount %s: %w", path, err)
		}
	}
	return nil
}

// UnmountAll unmounts all mounts that a journal contains, in the mount namespace of the calling
// process. It cleans up after a test whose caller did not clean up. It ignores paths that are not
// mount points.
func UnmountAll(journal string) error {
	calls, err := ReadJournal(journal)
	if err != nil {
		return err
	}

	var errs []error
	for _, method := range []string{NodePublish, NodeStage} {
		done := map[string]bool{}
		for _, c := range calls.Only(method) {
			path := c.TargetPath
			if method == NodeStage {
				path = c.StagingPath
			}
			if !done[path] {
				done[path] = true
				errs = append(errs, unmountAll(path))
			}
		}
	}

	return errors.Join(errs...)
}
