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
	Name string // as under /dev; empty where it is not known
	Gone bool   // there is no such device any more
	// Backing is the file behind a loop device, empty for every other one, and Deleted
	// is set once that file has no name any more: it goes with the device.
	Backing string
	Deleted bool
}

// deletedMark ends the name of a file in sysfs that has none any more.
const deletedMark = " (deleted)"

// loopMajor is the major device number of loop devices.
const loopMajor = 7

// loopNode is the loop device whose node was looked at, as "major:minor"; empty
// if it was anything else.
func loopNode(st unix.Statx_t) string {
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev_major != loopMajor {
		return ""
	}
	return device(st.Rdev_major, st.Rdev_minor)
}

// unattached reports whether a loop device has no file. Sysfs has a directory for
// each device, and in that one named "loop" while a file is attached.
func (h *Host) unattached(dev string) bool {
	if err := unix.Access(h.sys+"/dev/block/"+dev, unix.F_OK); err != nil {
		return false // it cannot be told
	}
	return errors.Is(unix.Access(h.sys+"/dev/block/"+dev+"/loop", unix.F_OK), unix.ENOENT)
}

// Block tells of a device, given as "major:minor". It asks the kernel alone, and
// not the device.
func (h *Host) Block(dev string) BlockDevice {
	b := BlockDevice{Name: h.deviceName(dev), Gone: h.deviceGone(dev)}
	raw, err := os.ReadFile(h.sys + "/dev/block/" + dev + "/loop/backing_file")
	if err != nil {
		return b // no loop device, or one with no file
	}
	b.Backing, b.Deleted = strings.CutSuffix(strings.TrimSuffix(string(raw), "\n"), deletedMark)
	return b
}

// Loops returns the loop devices that have a file and keep it until somebody detaches
// them, by their "major:minor".
func (h *Host) Loops() map[string]BlockDevice {
	found, _ := filepath.Glob(h.sys + "/block/loop*/loop") // the pattern is good
	loops := map[string]BlockDevice{}
	for _, dir := range found {
		number, err := os.ReadFile(filepath.Dir(dir) + "/dev")
		if err != nil {
			continue // removed meanwhile
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
