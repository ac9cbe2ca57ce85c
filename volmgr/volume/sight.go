package volume

import (
	"fmt"
	"strconv"
	"strings"
)

// Seen classifies the state of one path.
type Seen string

// The states of a path.
const (
	SeenNothing Seen = ""        // no mount point
	SeenMount   Seen = "mount"   // a mount that can be opened
	SeenDead    Seen = "dead"    // a mount that answers ENOTCONN, ESTALE, EIO …
	SeenHung    Seen = "hung"    // no answer before the time limit
	SeenError   Seen = "unknown" // the check itself failed
)

// Sight is the result of one check of one path.
type Sight struct {
	Seen     Seen
	Identity MountIdentity // if Seen is SeenMount or SeenDead, as far as it is known
	ReadOnly bool
	Detail   string // the error, or the time since which it hangs
	// Unchecked is set with SeenError if the check did not start in time. There is then no sign of
	// a problem.
	Unchecked bool
}

// Glimpse is a Sight and its path. The zero value is no sight at all.
type Glimpse struct {
	Path string
	Sight
}

// there reports whether something is mounted, dead or alive.
func (s Sight) there() bool { return s.Seen == SeenMount || s.Seen == SeenDead }

// Is reports whether the sight shows the recorded mount. Backing files are compared only if both
// are known, because older records have none.
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

// Side is the state of one thing that a call makes and another call undoes: connected, staged,
// published or bound.
type Side string

// The four states of a side. The zero value is Absent.
const (
	// Absent: the side was never made, or the agent saw the undoing call succeed.
	Absent Side = ""
	// Unknown: the making call may have run, because the agent died at about that time. It is safe
	// to make the side again, and it is safe to undo it.
	Unknown Side = "unknown"
	// Failed: the making call or an undoing call ended in an error. The side may exist despite the
	// error, so it is undone before it is made again.
	Failed Side = "failed"
	// Present: the side was made and verified.
	Present Side = "present"
)

// Valid reports whether s is one of the four states.
func (s Side) Valid() bool {
	return s == Absent || s == Unknown || s == Failed || s == Present
}

// String returns the name of the state, also for the zero value.
func (s Side) String() string {
	if s == Absent {
		return "absent"
	}
	return string(s)
}

// MountIdentity distinguishes a mount from every other mount, including another mount of the same
// file system. Two identities of the same mount are equal.
type MountIdentity struct {
	Namespace uint64 `json:"ns"`           // inode of the mount namespace
	Boot      string `json:"boot"`         // boot id
	Device    string `json:"dev"`          // "major:minor" of the file system
	Root      string `json:"root"`         // path of the mount's root in that file system
	FSType    string `json:"fs"`           // kernel's name of the file system type
	ID        uint64 `json:"id,omitempty"` // unique mount id; 0 before Linux 6.8

	// Backing is the file behind the loop device whose node is mounted. It is empty for all other
	// mounts. A loop device can be detached and its number given to another file while its device
	// node stays in place.
	Backing string `json:"backing,omitempty"`
}

// Shows reports whether a mount shows the same directory of the same file system as o. The two may
// be different mounts, because a plugin may have mounted the directory twice. A FUSE file system
// gets another device number each time it is mounted, so only its type and root are compared.
func (m MountIdentity) Shows(o MountIdentity) bool {
	same := m.Boot == o.Boot && m.Device == o.Device && m.Root == o.Root && m.FSType == o.FSType
	again := m.FUSE() && m.FSType == o.FSType && m.Root == o.Root
	return same || again
}

// FUSE reports whether a process serves the mount. Such a mount breaks when that process ends.
func (m *MountIdentity) FUSE() bool {
	return m != nil && (m.FSType == "fuse" || m.FSType == "fuseblk")
}
