// Package mount reads mounts from the kernel and changes them. It contains the look at one path,
// the mount table, the mount calls, and the search for users of a mount or a device.
//
// Every call that can block on storage runs in a goroutine of its own, and its caller waits for it
// no longer than a time limit. A call that does not return stays where it is, with at most one
// goroutine for each path and kind of call. Until it returns, the next caller of that kind gets an
// error at once that says since when it hangs. A call that returns leaves its goroutine to the next
// call, for a second or two. No lock is held across a system call.
//
// The identity of a mount comes from statx(2) and statmount(2) (Linux 6.8). If the kernel or a
// filter does not allow them, the same facts come from mountinfo. The unique mount id is missing on
// a kernel without one.
package mount

import (
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/proc"
	"golang.org/x/sys/unix"
)

// DefaultBound is the time limit of a call without another Option.
const DefaultBound = 5 * time.Second

// Host is this process's mount namespace in this boot. Its methods are safe for concurrent use.
type Host struct {
	namespace uint64
	boot      string
	bound     time.Duration
	gate      gate
	trees     trees

	// sys is /sys and proc is /proc. Only tests use other paths.
	sys, proc string

	// Tests set these to simulate an older kernel.
	noStatmount bool // before 6.8, or refused by a filter
	noMountRoot bool // before 5.8
	noSetattr   bool // before 5.12
	noHandles   bool // name_to_handle_at is refused
}

// Option changes a Host.
type Option func(*Host)

// WithBound sets the time limit of calls. It must be positive.
func WithBound(d time.Duration) Option { return func(h *Host) { h.bound = d } }

// New reads the identities of this mount namespace and this boot. It starts nothing.
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

// Namespace returns the inode number of the mount namespace.
func (h *Host) Namespace() uint64 { return h.namespace }

// Boot returns the kernel's id of this boot.
func (h *Host) Boot() string { return h.boot }
