package imagefs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/jobs"
	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/mounts"
)

// The kernel can grow all three filesystems while they are mounted, so no tool is needed. It
// journals the change: after a crash, the filesystem has either the old or the new size.

// The package x/sys has no names for these ioctls. The numbers come from linux/ext4.h, xfs_fs.h and
// linux/btrfs.h.
const (
	ext4ResizeFS   = 0x40086610 // EXT4_IOC_RESIZE_FS; its argument is a number of blocks
	xfsGeometry    = 0x80705864 // XFS_IOC_FSGEOMETRY_V1
	xfsGrowData    = 0x4010586e // XFS_IOC_FSGROWFSDATA
	btrfsResize    = 0x50009403 // BTRFS_IOC_RESIZE
	capSysResource = 24         // CAP_SYS_RESOURCE from capability.h, which ext4 requires to grow
)

// xfsGeom is the kernel's struct xfs_fsop_geom_v1, with names only for the fields in use.
type xfsGeom struct {
	blockSize uint32
	_         [6]uint32
	imaxPct   uint32
	blocks    uint64
	_         [72]byte
}

// xfsGrow is struct xfs_growfs_data.
type xfsGrow struct {
	blocks  uint64
	imaxPct uint32
	_       uint32
}

// btrfsArgs is struct btrfs_ioctl_vol_args.
type btrfsArgs struct {
	_    int64
	name [4088]byte
}

// GrowFilesystem makes the filesystem that is mounted at path as large as its device, whether or
// not it is in use. If the size is already right, it does nothing. The mount may be read-only.
// GrowFilesystem returns FAILED_PRECONDITION if the filesystem itself is read-only, or if it is an
// ext4 and the process lacks CAP_SYS_RESOURCE.
func GrowFilesystem(device, path, fsType string) error {
	fail := func(err error) error { return fmt.Errorf("cannot grow the %s at %q: %w", fsType, path, err) }
	fd, err := mounts.OpenWritable(path)
	if err != nil {
		return fail(err)
	}
	// Closing a directory cannot lose data.
	defer func() { _ = unix.Close(fd) }()

	have, want, err := Sizes(device, fd, fsType)
	if err != nil {
		return fail(err)
	}
	if have >= want {
		return nil
	}
	if TooSmallToGrow(fsType, want) {
		return csierr.Preconditionf("the %s at %q has %d bytes and its device %d: the kernel gives no %s less than %d (%s); expand the volume to at least that",
			fsType, path, have, want, fsType, LeastResize(fsType), jobs.HumanBytes(LeastResize(fsType)))
	}

	switch fsType {
	case "ext4":
		var fs unix.Statfs_t
		if err = unix.Fstatfs(fd, &fs); err == nil {
			blocks := uint64(want / fs.Bsize)
			err = mounts.Ioctl(fd, ext4ResizeFS, unsafe.Pointer(&blocks))
		}
	case "xfs":
		var geom xfsGeom
		if err = mounts.Ioctl(fd, xfsGeometry, unsafe.Pointer(&geom)); err == nil {
			err = mounts.Ioctl(fd, xfsGrowData, unsafe.Pointer(&xfsGrow{blocks: uint64(want) / uint64(geom.blockSize), imaxPct: geom.imaxPct}))
		}
	case "btrfs":
		args := &btrfsArgs{}
		copy(args.name[:], "max")
		err = mounts.Ioctl(fd, btrfsResize, unsafe.Pointer(args))
	}

	switch {
	case errors.Is(err, unix.EROFS):
		return csierr.Preconditionf("the %s at %q is mounted read-only; it can grow only while it is mounted for writing", fsType, path)
	case errors.Is(err, unix.EPERM) && fsType == "ext4":
		return csierr.Preconditionf("the ext4 at %q cannot grow in use: the driver lacks CAP_SYS_RESOURCE; it grows the next time it is staged", path)
	case err != nil:
		return fail(err)
	}

	return nil
}

// TooSmallToGrow reports whether the kernel refuses to resize a filesystem to this size, although
// mkfs can create a filesystem of the same size.
func TooSmallToGrow(fsType string, size int64) bool { return size < LeastResize(fsType) }

// LeastResize returns the smallest size in bytes to which the kernel can resize a mounted
// filesystem.
func LeastResize(fsType string) int64 {
	f, _ := FindFilesystem(fsType)
	return f.leastResize
}

// Sizes returns the size in bytes of a mounted filesystem, and the size of its device. fd is an
// open file or directory in the filesystem.
func Sizes(device string, fd int, fsType string) (have, want int64, err error) {
	if want, err = loopdev.BlockSize(device); err != nil {
		return 0, 0, err
	}

	switch fsType {
	case "ext4":
		have, err = ext4Size(device)
	case "xfs":
		var geom xfsGeom
		err = mounts.Ioctl(fd, xfsGeometry, unsafe.Pointer(&geom))
		have = int64(geom.blocks) * int64(geom.blockSize)
	default:
		var fs unix.Statfs_t
		err = unix.Fstatfs(fd, &fs)
		have = int64(fs.Blocks) * fs.Frsize
	}

	return have, want, err
}

// ext4Size reads the superblock from the device's cache, where a mounted ext4 keeps the superblock.
// The number of blocks is stored in two halves at 4 and 0x150, and the logarithm of the block size
// at 0x18.
func ext4Size(device string) (int64, error) {
	var sb [1024]byte
	f, err := os.Open(device)
	if err != nil {
		return 0, err
	}

	_, err = f.ReadAt(sb[:], 1024)
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, err
	}

	le := binary.LittleEndian
	if le.Uint16(sb[0x38:]) != 0xef53 {
		return 0, fmt.Errorf("%s holds no ext4", device)
	}

	blocks, shift := uint64(le.Uint32(sb[4:])), 10+uint64(le.Uint32(sb[0x18:]))
	if le.Uint32(sb[0x60:])&0x80 != 0 { // the flag of the ext4 feature "64bit"
		blocks |= uint64(le.Uint32(sb[0x150:])) << 32
	}

	if shift > 16 || blocks > math.MaxInt64>>shift { // an ext4 block has at most 64 KiB
		return 0, fmt.Errorf("%s holds an ext4 whose size makes no sense", device)
	}

	return int64(blocks << shift), nil
}

// GrowBeforeMount grows an ext4 before it is mounted, if the kernel would not let this process grow
// it afterwards. The caller must have just checked the filesystem for errors.
func GrowBeforeMount(ctx context.Context, fsType, device string) error {
	if fsType != "ext4" || MayGrowMounted() {
		return nil
	}

	have, err := ext4Size(device)
	if err != nil {
		return err
	}

	want, err := loopdev.BlockSize(device)
	if err != nil || have >= want {
		return err
	}

	for _, tool := range [][]string{{"e2fsck", "-f", "-p", device}, {"resize2fs", device}} {
		code, out, err := runTool(ctx, "e2fsprogs", tool[0], tool[1:]...)
		if err != nil {
			return err
		}

		if tool[0] == "e2fsck" {
			code &^= fsckCorrected | fsckReboot
		}

		if code != 0 {
			return csierr.Preconditionf("the filesystem on %s cannot be grown: %s exited with %d: %s", device, tool[0], code, out)
		}
	}

	return nil
}

// MayGrowMounted reports whether this process has CAP_SYS_RESOURCE, which it needs to grow a
// mounted ext4.
func MayGrowMounted() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&hdr, &data[0])
	return err == nil && data[0].Effective&(1<<capSysResource) != 0
}
