package localdriver

import (
	"errors"
	"fmt"
	"os"
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

// Add opens a device, unless it is held already.
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
