package imagefs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// letGoWithin is the time limit for other programs, such as udev, to close a device after a copy
// was mounted for a moment.
const letGoWithin = 30 * time.Second

// RenewImage makes the copy of an image an independent volume. It extends the file to the size of
// the new volume and sets a new UUID. If two filesystems had the same UUID, xfs and btrfs would
// refuse to mount both, and a mount by UUID could select either of them. Staging grows the
// filesystem itself later. No other process can see the image yet, so a crash at any moment does no
// harm.
func RenewImage(ctx context.Context, v store.Volume, dir string) error {
	path := filepath.Join(dir, store.ImageFile)
	err := lengthen(path, v.Capacity)
	if err != nil {
		return err
	}

	switch v.FSType {
	case "ext4":
		err = renewExt4(ctx, path)
	case "xfs":
		err = renewXFS(ctx, v.ID, path)
	case "btrfs":
		// This is fast for an image of any size, because it changes only the superblock. The
		// metadata keeps the old UUID.
		err = mustRun(ctx, "btrfs-progs", 0, "btrfstune", "-f", "-m", path)
	}
	if err != nil {
		return fmt.Errorf("cannot give the copied filesystem a UUID of its own: %w", err)
	}

	return syncFile(path)
}

func lengthen(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}

	st, err := f.Stat()
	if err == nil && st.Size() < size {
		err = f.Truncate(size)
		if errors.Is(err, unix.EFBIG) {
			err = csierr.OutOfRangef("an image of %d bytes is more than its filesystem allows for one file", size)
		}
	}

	return errors.Join(err, f.Close())
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// renewExt4 gives an ext4 a new UUID. It checks the filesystem first, because tune2fs requires a
// check if it must recompute all checksums.
func renewExt4(ctx context.Context, path string) error {
	if err := mustRun(ctx, "e2fsprogs", fsckCorrected|fsckReboot, "e2fsck", "-f", "-p", path); err != nil {
		return err
	}
	return mustRun(ctx, "e2fsprogs", 0, "tune2fs", "-U", "random", path)
}

// mustRun runs a tool. It returns an error if the exit code has bits other than the accepted ones.
func mustRun(ctx context.Context, pkg string, accepted int, name string, args ...string) error {
	code, out, err := runTool(ctx, pkg, name, args...)
	if err == nil && code&^accepted != 0 {
		err = fmt.Errorf("%s failed with exit code %d: %s", name, code, out)
	}
	return err
}

// renewXFS gives an xfs a new UUID. First it mounts the filesystem once: a copy of a frozen
// filesystem has entries in its log, and the UUID can be changed only when the log is empty. At the
// end it compares the UUID before and after the change, because xfs_db exits with success even if
// it makes no change.
func renewXFS(ctx context.Context, id, path string) error {
	before, err := xfsUUID(path)
	if err != nil {
		return err
	}
	if err := replayLog(ctx, id, path); err != nil {
		return err
	}

	code, out, err := runTool(ctx, "xfsprogs", "xfs_db", "-x", "-f", "-c", "uuid generate", path)
	if err != nil {
		return err
	}

	after, err := xfsUUID(path)
	if err == nil && (code != 0 || bytes.Equal(before, after)) {
		err = fmt.Errorf("xfs_db did not do it, exit code %d: %s", code, out)
	}

	return err
}

// xfsUUID reads the UUID of an xfs, which is at byte 32 of the superblock (sb_uuid).
func xfsUUID(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	uuid := make([]byte, 16)
	_, err = f.ReadAt(uuid, 32)
	return uuid, errors.Join(err, f.Close())
}

// replayLog mounts an xfs without a mount point, and unmounts it. The loop device detaches itself
// after its last close, even if this process is killed.
func replayLog(ctx context.Context, id, path string) error {
	l, fd, err := loopdev.AttachOpen(path, false, unix.LO_FLAGS_AUTOCLEAR)
	if err != nil {
		return err
	}
	err = mounts.WithPrivateMount(l.Path(), "xfs", []string{"nouuid"}, func(*os.File) error { return nil })
	// The tools can use the file only after the kernel has detached the device.
	return errors.Join(err, unix.Close(fd), loopdev.AwaitDetached(ctx, letGoWithin, id, path, l))
}
