package mount

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// BlockDevice is a block device as the kernel shows it.
type BlockDevice struct {
	Name string // the name under /dev; empty if it is unknown
	Gone bool   // the device no longer exists
	// Backing is the path of the file behind a loop device. It is empty for other devices. Deleted
	// is set if that file was deleted. The data of such a file is lost when the device is detached.
	Backing string
	Deleted bool
}

// deletedMark is the suffix that sysfs adds to the name of a deleted file.
const deletedMark = " (deleted)"

// loopMajor is the major device number of loop devices.
const loopMajor = 7

// loopNode returns the number ("major:minor") of the loop device to which a device node belongs. It
// returns an empty string for any other file.
func loopNode(st unix.Statx_t) string {
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev_major != loopMajor {
		return ""
	}
	return device(st.Rdev_major, st.Rdev_minor)
}

// unattached reports whether a loop device has no file. Sysfs has a directory for each device. This
// directory contains an entry named "loop" only while a file is attached.
func (h *Host) unattached(dev string) bool {
	if err := unix.Access(h.sys+"/dev/block/"+dev, unix.F_OK); err != nil {
		return false // sysfs does not show the device
	}
	return errors.Is(unix.Access(h.sys+"/dev/block/"+dev+"/loop", unix.F_OK), unix.ENOENT)
}

// Block describes a device, given by its number ("major:minor"). It reads from sysfs and does not
// access the device.
func (h *Host) Block(dev string) BlockDevice {
	b := BlockDevice{Name: h.deviceName(dev), Gone: h.deviceGone(dev)}
	raw, err := os.ReadFile(h.sys + "/dev/block/" + dev + "/loop/backing_file")
	if err != nil {
		return b // no loop device, or a loop device without a file
	}
	b.Backing, b.Deleted = strings.CutSuffix(strings.TrimSuffix(string(raw), "\n"), deletedMark)
	return b
}

// Loops returns the loop devices that have a file and keep it until a process detaches them
// explicitly. The keys are device numbers ("major:minor").
func (h *Host) Loops() map[string]BlockDevice {
	found, _ := filepath.Glob(h.sys + "/block/loop*/loop") // the pattern is valid
	loops := map[string]BlockDevice{}
	for _, dir := range found {
		number, err := os.ReadFile(filepath.Dir(dir) + "/dev")
		if err != nil {
			continue // the device was detached since Glob
		}
		if autoclear, err := os.ReadFile(dir + "/autoclear"); err != nil || strings.TrimSpace(string(autoclear)) == "1" {
			continue
		}

		dev := strings.TrimSpace(string(number))
		if b := h.Block(dev); b.Backing != "" {
			loops[dev] = b
		}
	}

	return loops
}
