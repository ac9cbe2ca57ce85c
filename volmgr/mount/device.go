package mount

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

// BlockReadOnly reports whether a block device refuses writes (BLKROGET). The path must be a node
// of the device. A read-only mount of the node does not change the result.
func (h *Host) BlockReadOnly(ctx context.Context, path string) (bool, error) {
	path = filepath.Clean(path)
	ro, err := bounded(ctx, &h.gate, kindLook, path, func() (bool, error) {
		st, err := statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE)
		if err != nil {
			return false, err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFBLK {
			return false, errors.New("it is not a block device")
		}

		fd, err := open(path, unix.O_RDONLY|unix.O_NONBLOCK)
		if err != nil {
			return false, err
		}
		defer closeFD(fd)
		n, err := unix.IoctlGetInt(fd, unix.BLKROGET)
		return n != 0, err
	})

	if err != nil {
		return false, fmt.Errorf("cannot find out whether %q is read-only: %w", path, err)
	}
	return ro, nil
}

// Devices returns the block devices at path, sorted by number. If path is a device node, the result
// is that device. If path is a mount point, the result contains all devices of the mounted file
// system. For any other path, or a missing path, the result is empty.
func (h *Host) Devices(ctx context.Context, path string) ([]volume.Device, error) {
	path = filepath.Clean(path)
	devs, err := bounded(ctx, &h.gate, kindLook, path, func() ([]volume.Device, error) {
		numbers, err := h.devices(path)
		var devs []volume.Device
		for _, n := range numbers {
			devs = append(devs, volume.Device{Number: n, Disk: h.diskSequence(n)})
		}
		return devs, err
	})

	if err != nil {
		return nil, fmt.Errorf("cannot find the devices of %q: %w", path, err)
	}
	return devs, nil
}

// devices returns the numbers of the block devices at path.
func (r *reader) devices(path string) ([]string, error) {
	// This call of statx follows symbolic links, because path may be a link to a device node.
	st, err := statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, lookMask)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK {
		return []string{device(st.Rdev_major, st.Rdev_minor)}, nil
	}

	_, p, err := r.find(path, statmountSBSource)
	if p == nil {
		return nil, err
	}
	// If find returns a point and an error, the mount does not work, but its devices are known.
	if !strings.HasPrefix(p.id.Device, "0:") {
		return []string{p.id.Device}, nil
	}

	dev := sourceDevice(p.source)
	if dev == "" {
		return nil, nil
	}
	return r.companions(dev), nil
}

// DeviceUsers describes the users of a device. An empty result proves that the device is unused:
//   - No mount namespace of any process contains a mount of the device.
//   - No process has the device's node open.
//   - The device can be opened exclusively. The kernel refuses that while the device is mounted in
//     any namespace, is a part of another device, or is used for swap.
//
// A device that no longer exists and is mounted nowhere is unused. A device is also unused if its
// number now belongs to another disk.
//
// DeviceUsers returns an error if any of these checks cannot be completed. A process that the agent
// may not inspect causes an error only if there is no block device. For a block device, the
// exclusive open covers such a process too.
func (h *Host) DeviceUsers(ctx context.Context, dev volume.Device) ([]string, error) {
	users, err := bounded(ctx, &h.gate, kindScan, dev.Number, func() ([]string, error) {
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

func (r *reader) deviceUsers(dev string) ([]string, error) {
	var major, minor uint32
	if n, err := fmt.Sscanf(dev, "%d:%d", &major, &minor); n != 2 || err != nil || device(major, minor) != dev {
		return nil, errors.New("it does not have the form major:minor")
	}

	node := ""
	if name := r.deviceName(dev); name != "" {
		node = "/dev/" + name
	}
	// Check 1: is the device mounted in any namespace?
	spaces, closed, err := r.spaces()
	if err != nil {
		return nil, err
	}

	var users []string
	for _, s := range spaces {
		found, err := r.mountedIn(s, dev)
		if err != nil {
			return nil, err
		}

		users = append(users, found...)
	}

	if major == 0 && len(closed) > 0 && len(users) == 0 {
		return nil, fmt.Errorf("the agent may not inspect process %d (%s)", closed[0], r.command(closed[0]))
	}
	if node == "" {
		if major == 0 { // no block device has the major number 0
			return users, nil
		}
		if err := r.available(); err != nil {
			return users, fmt.Errorf("sysfs is not available: %w", err)
		}
		return users, nil
	}

	// Check 2: does any process have the device's node open?
	openers, err := r.openers(node)
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

// mountedIn describes the mounts of a device in one mount namespace.
func (r *reader) mountedIn(s *space, dev string) ([]string, error) {
	number, node := []byte(" "+dev+" "), []byte(" /dev/")
	table, err := s.mounts(func(line []byte) bool {
		return bytes.Contains(line, number) || bytes.Contains(line, node)
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot read the mount table of process %d (%s): %w", s.pid, r.command(s.pid), err)
	}

	var users []string
	for _, m := range table {
		if device(uint32(m.Major), uint32(m.Minor)) != dev && (m.Major != 0 || sourceDevice(m.Source) != dev) {
			continue
		}

		where := ""
		if s.name != r.ownSpace() {
			where = fmt.Sprintf(" in the mount namespace of process %d (%s)", s.pid, r.command(s.pid))
		}
		users = append(users, fmt.Sprintf("mounted at %q%s", m.Mountpoint, where))
	}

	return users, nil
}

// openers describes the processes that have the device's node open under its usual name. It skips
// processes that the agent may not inspect.
func (p procfs) openers(node string) ([]string, error) {
	pids, err := p.processes()
	if err != nil {
		return nil, err
	}

	var users []string
	for _, pid := range pids {
		dir := p.procPath(pid, "fd")
		fds, err := numbers(dir)
		if gone(err) || denied(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot list files of process %d (%s): %w", pid, p.command(pid), err)
		}

		for _, fd := range fds {
			link, err := os.Readlink(fmt.Sprintf("%s/%d", dir, fd))
			if err == nil && strings.TrimSuffix(link, deletedMark) == node {
				users = append(users, fmt.Sprintf("open in process %d (%s)", pid, p.command(pid)))
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
