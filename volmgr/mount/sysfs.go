package mount

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

// sysfs is the path /sys. Its methods read the kernel's data about block devices. They take the
// number of a device ("major:minor"), and they do not access the device itself.
type sysfs string

// BlockDevice is a block device as the kernel shows it.
type BlockDevice struct {
	Name string // the name under /dev; empty if it is unknown
	Gone bool   // the device no longer exists
	// Backing is the path of the file behind a loop device. It is empty for other devices. If
	// Deleted is set, that file was deleted, and its data is lost when the device is detached.
	Backing string
	Deleted bool
}

// deletedMark is the suffix that the kernel adds to the path of a deleted file.
const deletedMark = " (deleted)"

// loopMajor is the major device number of loop devices.
const loopMajor = 7

// mtdMajor is the start of the device numbers of MTD flash. File systems on MTD flash have such a
// device number, although there is no block device.
const mtdMajor = "31:"

// device returns the directory that describes a block device.
func (s sysfs) device(dev string) string { return string(s) + "/dev/block/" + dev }

// Block describes a device.
func (s sysfs) Block(dev string) BlockDevice {
	b := BlockDevice{Name: s.deviceName(dev), Gone: s.deviceGone(dev)}
	raw, err := os.ReadFile(s.device(dev) + "/loop/backing_file")
	if err != nil {
		return b // no loop device, or a loop device without a file
	}
	b.Backing, b.Deleted = strings.CutSuffix(strings.TrimSuffix(string(raw), "\n"), deletedMark)
	return b
}

// Loops returns the loop devices that keep their file until a process explicitly detaches them. The
// keys are device numbers.
func (s sysfs) Loops() map[string]BlockDevice {
	// Glob fails only for an invalid pattern.
	found, _ := filepath.Glob(string(s) + "/block/loop*/loop")
	loops := map[string]BlockDevice{}
	for _, dir := range found {
		number, err := os.ReadFile(filepath.Dir(dir) + "/dev")
		if err != nil {
			continue // the device was detached after Glob
		}
		if autoclear, err := os.ReadFile(dir + "/autoclear"); err != nil || strings.TrimSpace(string(autoclear)) == "1" {
			continue
		}

		dev := strings.TrimSpace(string(number))
		if b := s.Block(dev); b.Backing != "" {
			loops[dev] = b
		}
	}

	return loops
}

// Replaced reports whether the device number now belongs to another disk. The kernel reuses the
// number of a disk only when the disk is neither mounted nor open. A replaced device is therefore
// unused.
func (s sysfs) Replaced(dev volume.Device) bool {
	now := s.diskSequence(dev.Number)
	return dev.Disk != 0 && now != 0 && now != dev.Disk
}

// diskSequence returns the sequence number (diskseq) of the disk to which a device or partition
// belongs, or 0 if there is none. It also returns 0 for a device of the device mapper. The sequence
// number of such a device proves nothing, because its mapping table can be exchanged while it is
// mounted.
func (s sysfs) diskSequence(dev string) uint64 {
	if strings.HasPrefix(s.deviceName(dev), "dm-") {
		return 0
	}

	dir := s.device(dev)
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

// deviceName returns the name of a block device under /dev, or an empty string if there is no such
// device.
func (s sysfs) deviceName(dev string) string {
	data, err := os.ReadFile(s.device(dev) + "/uevent")
	if err != nil {
		return ""
	}

	for line := range strings.Lines(string(data)) {
		if name, ok := strings.CutPrefix(line, "DEVNAME="); ok {
			return strings.TrimSuffix(name, "\n")
		}
	}

	return ""
}

// deviceGone reports whether no block device has the given number. A successful open does not prove
// that a device exists: a file system can be opened from the cache long after its disk was removed.
func (s sysfs) deviceGone(dev string) bool {
	if strings.HasPrefix(dev, "0:") || strings.HasPrefix(dev, mtdMajor) {
		return false
	}

	// The entry in sysfs is a symbolic link that disappears together with its device. It is not
	// necessary to follow the link, which would cost twice as much.
	var st unix.Stat_t
	if unix.Lstat(s.device(dev), &st) == nil {
		return false
	}
	return s.available() == nil
}

// available returns an error if sysfs does not show block devices. A device that is missing in such
// a sysfs may still exist.
func (s sysfs) available() error { return unix.Access(string(s)+"/dev/block", unix.F_OK) }

// unattached reports whether a loop device has no file. While a loop device has a file, its
// directory in sysfs contains an entry named "loop".
func (s sysfs) unattached(dev string) bool {
	if err := unix.Access(s.device(dev), unix.F_OK); err != nil {
		return false // sysfs does not show the device
	}
	return errors.Is(unix.Access(s.device(dev)+"/loop", unix.F_OK), unix.ENOENT)
}

// companions returns all devices of the btrfs file system that contains the given device. If the
// device does not belong to a btrfs file system, the result is this device alone.
func (s sysfs) companions(dev string) []string {
	name := s.deviceName(dev)
	// Glob fails only for an invalid pattern.
	found, _ := filepath.Glob(string(s) + "/fs/btrfs/*/devices/" + filepath.Base(name))
	devs := []string{dev}

	for _, f := range found {
		members, err := os.ReadDir(filepath.Dir(f))
		if err != nil {
			continue // the file system was unmounted after Glob
		}

		for _, m := range members {
			n, err := os.ReadFile(string(s) + "/class/block/" + m.Name() + "/dev")
			if err == nil {
				devs = append(devs, strings.TrimSpace(string(n)))
			}
		}
	}

	slices.Sort(devs)
	return slices.Compact(devs)
}

// loopNode returns the number of a loop device, given the attributes of its node. For any other
// file it returns an empty string.
func loopNode(st unix.Statx_t) string {
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev_major != loopMajor {
		return ""
	}
	return device(st.Rdev_major, st.Rdev_minor)
}

// sourceDevice returns the number of the block device that the source of a mount names, or an empty
// string. It is needed for file systems such as btrfs, because the device number of their mounts
// belongs to no block device.
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
