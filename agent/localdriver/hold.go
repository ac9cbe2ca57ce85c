package localdriver

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// held keeps the loop devices of volumes with block access open.
//
// A mounted filesystem keeps its device attached, but the bind mount of a device node does not. A
// tool that detaches all loop devices, or "losetup -d", would detach the device at once while it is
// in use. If the device is open, the kernel only marks it for detaching at the last close, and keep
// removes that mark. While no driver runs, no process holds the devices open. Then loopNumbers
// keeps the number of a lost device from being reused for another volume, and the agent finds and
// repairs the target.
type held struct {
	mu    sync.Mutex
	files map[string]*os.File // by device name
}

// add opens a device, unless it is held already.
func (h *held) add(l loopDevice) error {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.files[l.name] != nil {
		return nil
	}

	// Open it read-only: some kernels refuse to mount a device that is open for writing.
	f, err := os.OpenFile(l.path(), os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("cannot keep %s open: %w", l.path(), err)
	}

	if h.files == nil {
		h.files = map[string]*os.File{}
	}
	h.files[l.name] = f
	return nil
}

func (h *held) has(l loopDevice) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.files[l.name] != nil
}

// drop closes a device, so that it can be detached.
func (h *held) drop(l loopDevice) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.files[l.name]
	if f == nil {
		return nil
	}
	delete(h.files, l.name)
	return f.Close()
}

func (h *held) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var err error
	for _, f := range h.files {
		err = errors.Join(err, f.Close())
	}
	h.files = nil
	return err
}

// keep makes a held device stay attached after a program has asked to detach it.
func (h *held) keep(l *loopDevice) error {
	if !l.autoclear || !h.has(*l) {
		return nil
	}

	err := withDevice(l.path(), func(fd int) error {
		info, err := unix.IoctlLoopGetStatus64(fd)
		if err != nil {
			return err
		}
		info.Flags &^= unix.LO_FLAGS_AUTOCLEAR
		return unix.IoctlLoopSetStatus64(fd, info)
	})
	if err == nil {
		l.autoclear = false
	}

	return err
}

// takeOver examines the loop devices that an earlier driver attached. It holds those of volumes
// with block access, and logs a warning about devices that no volume can use. It detaches none,
// because the data of a deleted image is lost when its device is detached.
func (d *driver) takeOver() error {
	look, err := lookAround()
	if err != nil {
		return err
	}

	bound, err := boundLoopNodes()
	if err != nil {
		return err
	}

	for id, names := range look.loops {
		if _, err := d.store.get(id); validID(id) && errors.Is(err, errNoVolume) && d.attachedHere(names) {
			d.log.Warn("a loop device has the image of a volume that does not exist; detach it with losetup -d, unless its data is still needed", "volume_id", id, "devices", names)
		}
	}

	for _, v := range d.store.list() {
		if v.Type != typeImage {
			continue
		}

		img, err := imageAt(d.store.dataPath(v))
		if err != nil {
			continue // the volume's health reports it
		}

		for _, name := range look.loops[v.ID] {
			l, err := inspectLoop(name, img)
			if err != nil || l == nil {
				continue
			}

			if l.stale {
				d.log.Warn("the image of a volume was deleted or replaced while it is attached; copy the data away before the volume is detached", "volume_id", v.ID, "device", l.path())
			}

			// A device that is marked for detaching will disappear, unless its node is still bound.
			if !v.Block || l.autoclear && !bound[l.number()] {
				continue
			}

			if err := d.holdDevice(l); err != nil {
				d.log.Warn("a block volume's device can be detached while it is in use", "volume_id", v.ID, "device", l.path(), "error", err)
			}
		}
	}

	return nil
}

// attachedHere reports whether one of the devices has a backing file in the driver's own state
// directory.
func (d *driver) attachedHere(names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		raw, err := os.ReadFile("/sys/block/" + name + "/loop/backing_file")
		return err == nil && strings.HasPrefix(string(raw), d.store.root+"/")
	})
}

// holdDevice keeps a device open and attached until it is dropped.
func (d *driver) holdDevice(l *loopDevice) error {
	if err := d.held.add(*l); err != nil {
		return err
	}
	return d.held.keep(l)
}
