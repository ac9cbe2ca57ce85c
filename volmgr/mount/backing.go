package mount

import (
	"os"
	"strings"
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
