// Package mount reads mounts from the kernel and changes them. It inspects single paths, reads the
// mount table, makes mount calls, and searches for users of a mount or a device.
//
// The package has layers. The types procfs and sysfs read the kernel's files. The type reader
// combines them to describe mounts, and the type changer changes mounts. A Host adds time limits,
// because storage can block a system call forever.
//
// Every call that can block runs in a goroutine, and its caller waits no longer than the time
// limit. At most one call runs for each path and kind of call. While a call hangs past its time
// limit, further calls of the same kind for the same path fail at once. Their errors contain the
// time at which the hanging call began. No lock is held during a system call.
//
// The identity of a mount comes from statx(2) and statmount(2) (Linux 6.8). If the kernel or a
// filter does not allow these calls, the identity comes from mountinfo. On a kernel older than 6.8
// the identity lacks the unique mount id.
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
// concurrent use. The exported methods of the embedded types do not access storage, so they need no
// time limit.
type Host struct {
	changer
	gate  gate
	trees trees
}

// New returns a Host for the mount namespace of this process. It starts no goroutine.
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
