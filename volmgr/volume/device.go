package volume

import (
	"fmt"
	"strconv"
	"strings"
)

// Device is a block device as the agent saw it. The kernel may give the number of a removed device
// to another one. The disk's sequence number tells the two apart.
type Device struct {
	Number string // "major:minor"
	// Disk is the kernel's sequence number of the disk (/sys/block/DISK/diskseq, since Linux 5.15).
	// It is unique within a boot. It is 0 if the kernel does not provide one.
	Disk uint64
}

// String returns the device as it is stored: "major:minor", followed by "#" and the disk's
// sequence number if that is known.
func (d Device) String() string {
	if d.Disk == 0 {
		return d.Number
	}
	return fmt.Sprintf("%s#%d", d.Number, d.Disk)
}

// MarshalText encodes the device as String does.
func (d Device) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText decodes the text of MarshalText.
func (d *Device) UnmarshalText(text []byte) error {
	number, disk, found := strings.Cut(string(text), "#")
	*d = Device{Number: number}
	if !found {
		return nil
	}

	seq, err := strconv.ParseUint(disk, 10, 64)
	if err != nil {
		return fmt.Errorf("device %q: the disk's sequence number is not a number", text)
	}

	d.Disk = seq
	return nil
}
