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

// letGoWithin is the time that a device may stay open, by udev for example, after a copy was
// mounted.
const letGoWithin = 30 * time.Second

// RenewImage makes the copy of an image an independent volume. It extends the file to the volume's
// size and sets a new UUID. A new UUID is necessary because xfs and btrfs refuse to mount two
// filesystems with the same one, and a mount by UUID could select either of them. Staging grows the
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
		// This is fast for any size: the old UUID stays in the metadata, and the superblock gets a
		// new one.
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

// renewExt4 checks the filesystem first, because tune2fs requires it if it must recompute all
// checksums.
func renewExt4(ctx context.Context, path string) error {
	if err := mustRun(ctx, "e2fsprogs", fsckCorrected|fsckReboot, "e2fsck", "-f", "-p", path); err != nil {
		return err
	}
	return mustRun(ctx, "e2fsprogs", 0, "tune2fs", "-U", "random", path)
}

// mustRun runs a tool and returns an error if its exit code has bits that are not in fine.
func mustRun(ctx context.Context, pkg string, fine int, name string, args ...string) error {
	code, out, err := runTool(ctx, pkg, name, args...)
	if err == nil && code&^fine != 0 {
		err = fmt.Errorf("%s failed with exit code %d: %s", name, code, out)
	}
	return err
}

// renewXFS gives the copy a new UUID. It mounts the copy once, because the UUID can be changed only
// when the log is empty, and a copy of a frozen filesystem has entries in it. Then it compares the
// superblock before and after, because xfs_db exits with success even when it refuses.
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

// xfsUUID reads sb_uuid, at byte 32 of the superblock.
func xfsUUID(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	uuid := make([]byte, 16)
	_, err = f.ReadAt(uuid, 32)
	return uuid, errors.Join(err, f.Close())
}

// replayLog mounts an xfs without attaching it to a path, and unmounts it. The device detaches
// itself after its last close, also when this process is killed.
func replayLog(ctx context.Context, id, path string) error {
	l, fd, err := loopdev.AttachOpen(path, false, unix.LO_FLAGS_AUTOCLEAR)
	if err != nil {
		return err
	}
	err = mounts.WithPrivateMount(l.Path(), "xfs", []string{"nouuid"}, func(*os.File) error { return nil })
	// The tools can use the file only after the kernel has released it.
	return errors.Join(err, unix.Close(fd), loopdev.AwaitDetached(ctx, letGoWithin, id, path, l))
}
