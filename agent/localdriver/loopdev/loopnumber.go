package loopdev

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/volmgr/proc"
)

// maxLoops is the kernel's number of minor device numbers.
const maxLoops = 1 << 20

// loopNumbers chooses numbers for new loop devices.
//
// If another program detaches a device, its node stays bound at the targets of its volume, on the
// host or in a container. The kernel gives the number to the next image, and then those targets
// show that other image. loopNumbers therefore never chooses a number whose node is still bound
// anywhere.
type loopNumbers struct {
	bound map[int]bool
	next  int // the first number that was not tried yet
}

func newLoopNumbers() (*loopNumbers, error) {
	bound, err := BoundLoopNodes()
	return &loopNumbers{bound: bound}, err
}

// free returns the number of a device without an image, whose node is not bound anywhere. If
// another process takes the device first, the next call returns another number.
func (n *loopNumbers) free() (int, error) {
	ctl, err := unix.Open(LoopControl, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(ctl) }() // the control device was only read

	lowest, err := unix.IoctlRetInt(ctl, unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return 0, fmt.Errorf("no free loop device: %w", err)
	}

	for i := max(lowest, n.next); i < maxLoops; i++ {
		if n.bound[i] || LoopBacking(i) != "" {
			continue
		}

		// The kernel created the lowest free device itself. Others may not exist yet.
		err := unix.IoctlSetInt(ctl, unix.LOOP_CTL_ADD, i)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return 0, fmt.Errorf("cannot make loop device %d: %w", i, err)
		}

		n.next = i + 1
		return i, nil
	}

	return 0, errors.New("no free loop device")
}

// LoopBacking returns the path of the file that is attached to a loop device, as the kernel shows
// it. The path ends with " (deleted)" if the file has been deleted. It is empty if no file is
// attached.
func LoopBacking(number int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/loop/backing_file", number))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(raw), "\n")
}

// BoundLoopNodes returns the numbers of the loop devices whose node is bound to another path, in
// any mount namespace that the driver can read.
func BoundLoopNodes() (map[int]bool, error) {
	bound := map[int]bool{}
	note := func(e mounts.MountEntry) {
		if n, ok := boundLoopNode(e); ok {
			bound[n] = true
		}
	}
	const needle = "/loop"
	own, err := mounts.ReadMounts(proc.OwnMounts, needle)
	if err != nil {
		return nil, err
	}

	for _, e := range own {
		note(e)
	}

	return bound, mounts.OtherNamespaces([]string{needle}, func(_ int, e mounts.MountEntry) { note(e) })
}

// boundLoopNode returns the number of a loop device if the mount is a bind of its node. The name
// decides, because a path of another namespace cannot be examined from here. It ignores a bind at
// the device's usual path, because that belongs to the /dev of a container.
func boundLoopNode(e mounts.MountEntry) (number int, ok bool) {
	name := path.Base(strings.TrimSuffix(e.Root, "//deleted"))
	digits, ok := strings.CutPrefix(name, "loop")
	if !ok || e.Point == "/dev/"+name {
		return 0, false
	}
	number, err := strconv.Atoi(digits)
	return number, err == nil && number >= 0
}

// These names describe the loop devices of Linux: their major number, and the file that assigns
// free devices (loop(4)).
const (
	LoopMajor   = 7
	LoopControl = "/dev/loop-control"

	// attachTries limits how often the driver retries when another program takes the free loop
	// device first.
	attachTries = 64
	// detachWait is the time that another program, such as udev, may keep a device open after the
	// request to detach it.
	detachWait = 3 * time.Second
	// sectorSize is the logical block size of each loop device, for any disk below.
	sectorSize = 512
	// deletedMark is the kernel's suffix for the path of a file that has been deleted.
	deletedMark = " (deleted)"
)
