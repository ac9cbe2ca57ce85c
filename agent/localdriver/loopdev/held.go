package loopdev

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Held keeps the loop devices of block volumes open.
//
// A mounted filesystem keeps its device attached, but the bind mount of a device node does not. If
// the device were not open, "losetup -d", or a tool that detaches all loop devices, would detach it
// at once while it is in use. If the device is open, the kernel only marks it for detaching at the
// last close, and Keep removes this mark.
//
// While no driver runs, no process holds the devices open, so a device can get lost. In that case,
// loopNumbers prevents the reuse of its number for another volume, and the agent finds and repairs
// the target.
type Held struct {
	mu    sync.Mutex
	files map[string]*os.File // the open devices, by device name
}

// Add opens a device and keeps it open. If the device is already held, Add does nothing.
func (h *Held) Add(l LoopDevice) error {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.files[l.Name] != nil {
		return nil
	}

	// Use a read-only descriptor, because some kernels refuse to mount a device that is open for
	// writing.
	f, err := os.OpenFile(l.Path(), os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("cannot keep %s open: %w", l.Path(), err)
	}

	if h.files == nil {
		h.files = map[string]*os.File{}
	}
	h.files[l.Name] = f
	return nil
}

func (h *Held) has(l LoopDevice) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.files[l.Name] != nil
}

// Drop closes a device, so that the device can be detached.
func (h *Held) Drop(l LoopDevice) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.files[l.Name]
	if f == nil {
		return nil
	}
	delete(h.files, l.Name)
	return f.Close()
}

// Close closes all devices.
func (h *Held) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var err error
	for _, f := range h.files {
		err = errors.Join(err, f.Close())
	}
	h.files = nil
	return err
}

// Keep removes the kernel's mark for detaching from a held device, so that the device stays
// attached after its last close.
func (h *Held) Keep(l *LoopDevice) error {
	if !l.Autoclear || !h.has(*l) {
		return nil
	}

	err := WithDevice(l.Path(), func(fd int) error {
		info, err := unix.IoctlLoopGetStatus64(fd)
		if err != nil {
			return err
		}
		info.Flags &^= unix.LO_FLAGS_AUTOCLEAR
		return unix.IoctlLoopSetStatus64(fd, info)
	})
	if err == nil {
		l.Autoclear = false
	}

	return err
}
