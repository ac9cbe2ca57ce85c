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

// maxLoops is the number of minor device numbers that the kernel has.
const maxLoops = 1 << 20

// loopNumbers chooses numbers for new loop devices.
//
// If another program detaches a device of a volume, the node of the device stays bind-mounted at
// the volume's targets, on the host or in a container. If the next image got the same device
// number, these targets would show the other image. loopNumbers therefore never chooses a number
// whose node is still bind-mounted anywhere.
type loopNumbers struct {
	bound map[int]bool
	next  int // free tries this number next
}

func newLoopNumbers() (*loopNumbers, error) {
	bound, err := BoundLoopNodes()
	return &loopNumbers{bound: bound}, err
}

// free returns the number of a loop device that has no image and whose node is not bind-mounted
// anywhere. If another process takes the device first, the next call returns another number.
func (n *loopNumbers) free() (int, error) {
	ctl, err := unix.Open(LoopControl, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	// closing cannot lose data, because the control device was only read
	defer func() { _ = unix.Close(ctl) }()

	lowest, err := unix.IoctlRetInt(ctl, unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return 0, fmt.Errorf("no free loop device: %w", err)
	}

	for i := max(lowest, n.next); i < maxLoops; i++ {
		if n.bound[i] || LoopBacking(i) != "" {
			continue
		}

		// The kernel has already created the lowest free device. A device with a higher number may
		// not exist yet.
		err := unix.IoctlSetInt(ctl, unix.LOOP_CTL_ADD, i)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return 0, fmt.Errorf("cannot make loop device %d: %w", i, err)
		}

		n.next = i + 1
		return i, nil
	}

	return 0, errors.New("no free loop device")
}

// LoopBacking returns the path of the backing file of a loop device, as the kernel reports it. If
// the file has been deleted, the path ends with " (deleted)". The path is empty if the device has
// no backing file.
func LoopBacking(number int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/loop/backing_file", number))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(raw), "\n")
}

// BoundLoopNodes returns the numbers of the loop devices whose node is bind-mounted at another
// path, in any mount namespace that the driver can read.
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

// boundLoopNode returns the number of a loop device if a mount is a bind mount of the device's
// node. It decides by the name of the node, because a path in another mount namespace cannot be
// examined from here. It ignores a bind mount at the usual path of the device, which belongs to the
// /dev of a container.
func boundLoopNode(e mounts.MountEntry) (number int, ok bool) {
	name := path.Base(strings.TrimSuffix(e.Root, "//deleted"))
	digits, ok := strings.CutPrefix(name, "loop")
	if !ok || e.Point == "/dev/"+name {
		return 0, false
	}
	number, err := strconv.Atoi(digits)
	return number, err == nil && number >= 0
}

// These constants identify the loop devices of Linux: the major number, and the device file that
// assigns free devices (loop(4)).
const (
	LoopMajor   = 7
	LoopControl = "/dev/loop-control"

	// attachTries limits how often the driver retries when another program takes the free loop
	// device first.
	attachTries = 64
	// detachWait is the time limit for other programs, such as udev, to close a device after the
	// request to detach it.
	detachWait = 3 * time.Second
	// sectorSize is the logical block size of each loop device, regardless of the disk that
	// contains the image.
	sectorSize = 512
	// deletedMark is the kernel's suffix for the path of a file that has been deleted.
	deletedMark = " (deleted)"
)
