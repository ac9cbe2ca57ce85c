// Package mount is what the kernel says about mounts, and what is asked of it:
// one look at one path, the mount table, the mount calls, and who uses a
// mount or a device.
//
// Everything that can block on storage runs in a goroutine that does nothing
// else meanwhile and is waited for no longer than a bound. What does not come
// back is left where it is, one goroutine for each path and kind of call at
// most, and until it returns the next caller of that kind is told at once since
// when it hangs. What does come back leaves its goroutine to the next call, for
// a second or two. No lock is held across a system call.
//
// Identity comes from statx(2) and statmount(2) (Linux 6.8). Where the kernel
// or a filter does not give them, the same facts come from mountinfo, less the
// unique mount id on a kernel that has none.
package mount

import (
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/proc"
	"golang.org/x/sys/unix"
)

// DefaultBound is how long a call may take when no Option says otherwise.
const DefaultBound = 5 * time.Second

// Host is the mount namespace this process is in, at this boot. Its methods
// may be called from many goroutines.
type Host struct {
	namespace uint64
	boot      string
	bound     time.Duration
	gate      gate
	trees     trees

	// sys is /sys, proc is /proc: other places only in tests.
	sys, proc string
	// What a test takes away, to stand where an older kernel stands.
	noStatmount bool // before 6.8, or refused by a filter
	noMountRoot bool // before 5.8
	noSetattr   bool // before 5.12
	noHandles   bool // name_to_handle_at is refused
}

// Option changes a Host.
type Option func(*Host)

// WithBound sets how long a call is waited for; it must be positive.
func WithBound(d time.Duration) Option { return func(h *Host) { h.bound = d } }

// New reads which mount namespace and which boot this is. It starts nothing.
func New(opts ...Option) (*Host, error) {
	h := &Host{bound: DefaultBound, sys: "/sys", proc: "/proc"}
	for _, o := range opts {
		o(h)
	}
	if h.bound <= 0 {
		return nil, fmt.Errorf("cannot bound mount calls by %v: not positive", h.bound)
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/mnt", &st); err != nil {
		return nil, fmt.Errorf("cannot read own mount namespace: %w", err)
	}
	boot, err := proc.BootID()
	if err != nil {
		return nil, err
	}

	h.namespace, h.boot = st.Ino, boot
	return h, nil
}

// Namespace is the inode number of the mount namespace.
func (h *Host) Namespace() uint64 { return h.namespace }

// Boot is the kernel's id of this boot.
func (h *Host) Boot() string { return h.boot }
