package mount

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

// scanFactor is multiplied with the normal time limit for a walk over all processes. Such a walk
// reads much data from the kernel, but nothing from storage.
const scanFactor = 6

// DeviceUsers describes the users of a device. An empty result proves that the device is unused:
//   - No mount namespace of any process contains a mount of it.
//   - No process has its node open.
//   - The device can be opened exclusively. The kernel refuses that while the device is mounted in
//     any namespace, is a part of another device, or is used for swap.
//
// A device that no longer exists and is mounted nowhere is unused. The same is true if its number
// now belongs to another disk.
//
// DeviceUsers returns an error if any of these checks cannot be completed. If there is a block
// device, a process that the agent may not inspect does not matter, because the exclusive open
// covers it too. Without a block device, such a process causes an error.
func (h *Host) DeviceUsers(ctx context.Context, dev volume.Device) ([]string, error) {
	users, err := bounded(ctx, h, kindScan, dev.Number, scanFactor*h.bound, func() ([]string, error) {
		if h.Replaced(dev) {
			return nil, nil
		}
		return h.deviceUsers(dev.Number)
	})

	if err != nil {
		return nil, fmt.Errorf("cannot find the users of device %s: %w", dev.Number, err)
	}
	return users, nil
}

func (h *Host) deviceUsers(dev string) ([]string, error) {
	var major, minor uint32
	if n, err := fmt.Sscanf(dev, "%d:%d", &major, &minor); n != 2 || err != nil || device(major, minor) != dev {
		return nil, errors.New("it does not have the form major:minor")
	}

	node := ""
	if name := h.deviceName(dev); name != "" {
		node = "/dev/" + name
	}
	// Check 1: is the device mounted in any namespace?
	spaces, closed, err := h.spaces()
	if err != nil {
		return nil, err
	}

	var users []string
	for _, s := range spaces {
		found, err := h.mountedIn(s, dev)
		if err != nil {
			return nil, err
		}

		users = append(users, found...)
	}

	if major == 0 && len(closed) > 0 && len(users) == 0 {
		return nil, fmt.Errorf("the agent may not inspect process %d (%s)", closed[0], h.command(closed[0]))
	}
	if node == "" {
		return users, h.knowsGone(major)
	}

	// Check 2: does any process have its node open?
	openers, err := h.openers(node)
	if err != nil {
		return nil, err
	}

	users = append(users, openers...)
	// Check 3: does the kernel itself use the device?
	busy, err := deviceBusy(node, dev)
	if err != nil {
		return nil, err
	}
	if busy && len(users) == 0 {
		users = []string{"device is busy"}
		if n := len(closed); n > 0 {
			users[0] += fmt.Sprintf(" (the agent may not inspect %d processes)", n)
		}
	}

	return users, nil
}

// knowsGone returns an error if the absence of a device in sysfs does not prove that it is gone.
func (h *Host) knowsGone(major uint32) error {
	if major == 0 {
		return nil // a device with major 0 is never a block device
	}
	if err := unix.Access(h.sys+"/dev/block", unix.F_OK); err != nil {
		return fmt.Errorf("sysfs is not available: %w", err)
	}
	return nil
}

// mountedIn describes the mounts of a device in a namespace.
func (h *Host) mountedIn(s *space, dev string) ([]string, error) {
	number, node := []byte(" "+dev+" "), []byte(" /dev/")
	table, err := s.mounts(func(line []byte) bool {
		return bytes.Contains(line, number) || bytes.Contains(line, node)
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot read the mount table of process %d (%s): %w", s.pid, h.command(s.pid), err)
	}

	var users []string
	for _, m := range table {
		if device(uint32(m.Major), uint32(m.Minor)) != dev && (m.Major != 0 || sourceDevice(m.Source) != dev) {
			continue
		}

		where := ""
		if s.name != h.ownSpace() {
			where = fmt.Sprintf(" in the mount namespace of process %d (%s)", s.pid, h.command(s.pid))
		}
		users = append(users, fmt.Sprintf("mounted at %q%s", m.Mountpoint, where))
	}

	return users, nil
}

// openers describes the processes that have the device's node open under its usual name. It skips
// processes that the agent may not inspect.
func (h *Host) openers(node string) ([]string, error) {
	pids, err := h.processes()
	if err != nil {
		return nil, err
	}

	var users []string
	for _, pid := range pids {
		dir := h.procPath(pid, "fd")
		fds, err := numbers(dir)
		if gone(err) || denied(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot list files of process %d (%s): %w", pid, h.command(pid), err)
		}

		for _, fd := range fds {
			link, err := os.Readlink(fmt.Sprintf("%s/%d", dir, fd))
			if err == nil && strings.TrimSuffix(link, " (deleted)") == node {
				users = append(users, fmt.Sprintf("open in process %d (%s)", pid, h.command(pid)))
				break
			}
		}
	}

	return users, nil
}

// deviceBusy reports whether an exclusive open of the device fails because the device is in use.
func deviceBusy(node, dev string) (bool, error) {
	var st unix.Stat_t
	if err := unix.Stat(node, &st); err != nil {
		return false, fmt.Errorf("cannot find its node: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || device(unix.Major(st.Rdev), unix.Minor(st.Rdev)) != dev {
		return false, fmt.Errorf("%q is the node of another device", node)
	}

	fd, err := open(node, unix.O_RDONLY|unix.O_EXCL|unix.O_NONBLOCK)
	switch {
	case err == nil:
		closeFD(fd)
		return false, nil
	case errors.Is(err, unix.EBUSY):
		return true, nil
	case errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOMEDIUM):
		return false, nil // the device no longer exists
	default:
		return false, fmt.Errorf("cannot open %q exclusively: %w", node, err)
	}
}
