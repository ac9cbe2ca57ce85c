package mount

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

// BlockReadOnly reports whether a block device refuses writes (BLKROGET). The parameter path names
// the device's node. A read-only mount of the node does not change the result.
func (h *Host) BlockReadOnly(ctx context.Context, path string) (bool, error) {
	path = filepath.Clean(path)
	ro, err := bounded(ctx, h, kindLook, path, h.bound, func() (bool, error) {
		st, err := statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE)
		if err != nil {
			return false, err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFBLK {
			return false, errors.New("it is not a block device")
		}

		fd, err := open(path, unix.O_RDONLY|unix.O_NONBLOCK)
		if err != nil {
			return false, err
		}
		defer closeFD(fd)
		n, err := unix.IoctlGetInt(fd, unix.BLKROGET)
		return n != 0, err
	})

	if err != nil {
		return false, fmt.Errorf("cannot find out whether %q is read-only: %w", path, err)
	}
	return ro, nil
}

// Devices returns the block devices at path, sorted by number. If path is a device node, the result
// is its device. If path is a mount point, the result contains all devices of the mounted file
// system. For any other path, or a missing one, the result is empty.
func (h *Host) Devices(ctx context.Context, path string) ([]volume.Device, error) {
	path = filepath.Clean(path)
	devs, err := bounded(ctx, h, kindLook, path, h.bound, func() ([]volume.Device, error) {
		numbers, err := h.devices(path)
		var devs []volume.Device
		for _, n := range numbers {
			devs = append(devs, volume.Device{Number: n, Disk: h.diskSequence(n)})
		}
		return devs, err
	})

	if err != nil {
		return nil, fmt.Errorf("cannot find the devices of %q: %w", path, err)
	}
	return devs, nil
}

func (h *Host) devices(path string) ([]string, error) {
	// statx follows a symbolic link here, because path may be a link to a device node.
	st, err := statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, lookMask)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK {
		return []string{device(st.Rdev_major, st.Rdev_minor)}, nil
	}

	_, p, err := h.find(path, statmountSBSource)
	if p == nil {
		return nil, err
	}
	// The devices are also known if the mount does not work.
	if !strings.HasPrefix(p.id.Device, "0:") {
		return []string{p.id.Device}, nil
	}

	dev := sourceDevice(p.source)
	if dev == "" {
		return nil, nil
	}
	return h.companions(dev), nil
}

// sourceDevice returns the block device that the source of a mount names, or an empty string. It is
// needed for btrfs and other file systems whose mounts show a device number that belongs to no
// block device.
func sourceDevice(source string) string {
	if !strings.HasPrefix(source, "/dev/") {
		return ""
	}

	var st unix.Stat_t
	if err := unix.Stat(source, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return ""
	}
	return device(unix.Major(st.Rdev), unix.Minor(st.Rdev))
}

// companions returns all devices of the btrfs file system that contains dev. If dev belongs to no
// btrfs, it returns dev alone.
func (h *Host) companions(dev string) []string {
	name := h.deviceName(dev)
	found, _ := filepath.Glob(h.sys + "/fs/btrfs/*/devices/" + filepath.Base(name)) // the pattern is valid
	devs := []string{dev}

	for _, f := range found {
		members, err := os.ReadDir(filepath.Dir(f))
		if err != nil {
			continue // the file system was unmounted since Glob
		}

		for _, m := range members {
			n, err := os.ReadFile(h.sys + "/class/block/" + m.Name() + "/dev")
			if err == nil {
				devs = append(devs, strings.TrimSpace(string(n)))
			}
		}
	}

	slices.Sort(devs)
	return slices.Compact(devs)
}

// diskSequence returns the sequence number (diskseq) of the disk to which a device or partition
// belongs. It returns 0 if the kernel provides none. It also returns 0 for the device mapper, whose
// sequence number proves nothing: such a device keeps its device number while its table is
// exchanged under a mount.
func (h *Host) diskSequence(dev string) uint64 {
	if strings.HasPrefix(h.deviceName(dev), "dm-") {
		return 0
	}

	dir := h.sys + "/dev/block/" + dev
	if unix.Access(dir+"/partition", unix.F_OK) == nil {
		dir += "/.." // the parent of the link's target is the disk
	}
	raw, err := os.ReadFile(dir + "/diskseq")
	if err != nil {
		return 0
	}

	seq, err := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 64)
	if err != nil {
		return 0
	}
	return seq
}

// Replaced reports whether the device number now belongs to another disk. The kernel reuses a
// number only when its disk is neither mounted nor open. A replaced device is therefore unused.
func (h *Host) Replaced(dev volume.Device) bool {
	now := h.diskSequence(dev.Number)
	return dev.Disk != 0 && now != 0 && now != dev.Disk
}

// deviceName returns the name of a block device under /dev, or an empty string if there is no such
// device.
func (h *Host) deviceName(dev string) string {
	data, err := os.ReadFile(h.sys + "/dev/block/" + dev + "/uevent")
	if err != nil {
		return ""
	}

	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if name, ok := strings.CutPrefix(lines.Text(), "DEVNAME="); ok {
			return name
		}
	}

	return ""
}
