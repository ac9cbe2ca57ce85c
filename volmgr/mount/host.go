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

// callLimit is the time limit of a call. Tests use other limits.
const callLimit = 5 * time.Second

// Host represents the mount namespace of this process in this boot. Its methods are safe for
// concurrent use. The methods that it gets from its embedded parts ask only the kernel and need no
// time limit.
type Host struct {
	changer
	gate  gate
	trees trees
}

// New reads the identities of this mount namespace and this boot. It starts nothing.
func New() (*Host, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/mnt", &st); err != nil {
		return nil, fmt.Errorf("cannot read own mount namespace: %w", err)
	}

	boot, err := proc.BootID()
	if err != nil {
		return nil, err
	}

	r := reader{procfs: "/proc", sysfs: "/sys", namespace: st.Ino, boot: boot}
	return &Host{changer: changer{reader: r}, gate: gate{bound: callLimit}}, nil
}
