package volume

import (
	"fmt"
	"strconv"
	"strings"
)

// Seen classifies the observed state of a path.
type Seen string

// These are the observed states of a path.
const (
	SeenNothing Seen = ""        // no mount point
	SeenMount   Seen = "mount"   // a mount that can be opened
	SeenDead    Seen = "dead"    // a mount that returns errors such as ENOTCONN, ESTALE or EIO
	SeenHung    Seen = "hung"    // a mount that did not answer within the time limit
	SeenError   Seen = "unknown" // the check itself failed
)

// Sight is the result of one check of a path.
type Sight struct {
	Seen     Seen
	Identity MountIdentity // identity of the mount, as far as it is known, if Seen is SeenMount or SeenDead
	ReadOnly bool
	Detail   string // the error, or how long the mount has hung
	// Unchecked is set together with SeenError if the check did not start within the time limit. In
	// this case, the path itself may be healthy.
	Unchecked bool
}

// Glimpse is a Sight with its path. The zero value means that no path was checked.
type Glimpse struct {
	Path string
	Sight
}

// there reports whether the path has a mount, even if the mount is dead.
func (s Sight) there() bool { return s.Seen == SeenMount || s.Seen == SeenDead }

// Is reports whether the observed mount is the recorded mount m. It compares backing files only if
// both are known, because older records do not contain them.
func (s Sight) Is(m *MountIdentity) bool {
	if m == nil {
		return false
	}

	seen := s.Identity
	if seen.Backing == "" || m.Backing == "" {
		seen.Backing = m.Backing
	}
	return seen == *m
}

// Device is an observed block device. The kernel may reuse the number of a removed device. The
// sequence number of the disk then distinguishes the new device from the old one.
type Device struct {
	Number string // in the form "major:minor"
	// Disk is the kernel's sequence number of the disk (/sys/block/DISK/diskseq, since Linux 5.15).
	// It is unique within a boot. It is 0 if the kernel provides no such number.
	Disk uint64
}

// String returns the stored form of the device: "major:minor". If the sequence number of the disk
// is known, "#" and this number follow.
func (d Device) String() string {
	if d.Disk == 0 {
		return d.Number
	}
	return fmt.Sprintf("%s#%d", d.Number, d.Disk)
}

// MarshalText returns the same text as String.
func (d Device) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses the text that MarshalText returns.
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

// Side is the state of one thing that a call makes and another call undoes: connected, staged,
// published or bound.
type Side string

// These are the four states of a side. The zero value is Absent.
const (
	// Absent means that the side was never made, or that a later call has undone it.
	Absent Side = ""
	// Unknown means that the agent died at about the time of the call that makes the side. The
	// agent can safely make the side again or undo it.
	Unknown Side = "unknown"
	// Failed means that the call that makes or undoes the side returned an error. The side may
	// exist despite the error, so the agent undoes it before it makes it again.
	Failed Side = "failed"
	// Present means that the side was made, and that the agent has verified it.
	Present Side = "present"
)

// Valid reports whether s is one of the four states above.
func (s Side) Valid() bool {
	return s == Absent || s == Unknown || s == Failed || s == Present
}

// String returns the name of the state, even for the zero value.
func (s Side) String() string {
	if s == Absent {
		return "absent"
	}
	return string(s)
}

// MountIdentity distinguishes a mount from every other mount, including another mount of the same
// file system. Two identities are equal if they belong to the same mount.
type MountIdentity struct {
	Namespace uint64 `json:"ns"`           // inode of the mount namespace
	Boot      string `json:"boot"`         // boot id of the host
	Device    string `json:"dev"`          // "major:minor" of the file system
	Root      string `json:"root"`         // path of the mount's root in that file system
	FSType    string `json:"fs"`           // type of the file system, as the kernel names it
	ID        uint64 `json:"id,omitempty"` // unique mount id; 0 before Linux 6.8

	// Backing is the file behind a mounted loop device. It is empty for all other mounts. A user
	// can attach a loop device to another file while the device node remains mounted, so the device
	// alone does not identify the file.
	Backing string `json:"backing,omitempty"`
}

// Shows reports whether both mounts show the same directory of the same file system. They need not
// be the same mount, because a plugin may have mounted the directory twice. A FUSE file system gets
// another device number for each mount, so Shows compares only its type and root.
func (m MountIdentity) Shows(o MountIdentity) bool {
	same := m.Boot == o.Boot && m.Device == o.Device && m.Root == o.Root && m.FSType == o.FSType
	again := m.FUSE() && m.FSType == o.FSType && m.Root == o.Root
	return same || again
}

// FUSE reports whether a user-space process serves the mount. The mount stops working when that
// process ends.
func (m *MountIdentity) FUSE() bool {
	return m != nil && (m.FSType == "fuse" || m.FSType == "fuseblk")
}
