// Package mount reads mounts from the kernel and changes them. It inspects one path, reads the
// mount table, makes the mount calls, and searches for users of a mount or a device.
//
// Storage can block a system call forever. Therefore every call that can block runs in a goroutine,
// and its caller waits no longer than a time limit. At most one call runs for each path and kind of
// call. While a call hangs, the next caller of that kind gets an error at once, with the time since
// when the call hangs. A goroutine whose call has returned makes further calls for a second or two.
// No lock is held during a system call.
//
// The identity of a mount comes from statx(2) and statmount(2) (Linux 6.8). If the kernel or a
// filter does not allow them, the same facts come from mountinfo. On an older kernel the unique
// mount id is missing.
package mount

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
)

// DefaultBound is the time limit of a call unless an Option changes it.
const DefaultBound = 5 * time.Second

// Host represents the mount namespace of this process in this boot. Its methods are safe for
// concurrent use. The methods that it gets from its embedded parts ask only the kernel and need no
// time limit.
type Host struct {
	changer
	gate  gate
	trees trees
}

// Option changes a Host.
type Option func(*Host)

// WithBound sets the time limit of calls. The limit must be positive.
func WithBound(d time.Duration) Option { return func(h *Host) { h.gate.bound = d } }

// New reads the identities of this mount namespace and this boot. It starts nothing.
func New(opts ...Option) (*Host, error) {
	h := &Host{gate: gate{bound: DefaultBound}}
	h.procfs, h.sysfs = "/proc", "/sys"
	for _, o := range opts {
		o(h)
	}

	if h.gate.bound <= 0 {
		return nil, fmt.Errorf("cannot use the time limit %v for mount calls: it is not positive", h.gate.bound)
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
