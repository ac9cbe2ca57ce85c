package mount

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Changes calls fn once when the watch begins, and again whenever any process has made, changed or
// removed mounts in this mount namespace. It returns nil when ctx ends. The kernel reports only
// that something changed. Changes that happen while fn runs, or within the duration apart after it,
// cause a single further call.
func (h *Host) Changes(ctx context.Context, apart time.Duration, fn func()) error {
	table, err := open(h.proc+"/self/mountinfo", unix.O_RDONLY)
	if err != nil {
		return fmt.Errorf("cannot watch the mount table: %w", err)
	}
	defer closeFD(table)
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("cannot watch the mount table: eventfd: %w", err)
	}
	defer closeFD(wake)
	stop := context.AfterFunc(ctx, func() {
		_, _ = unix.Write(wake, binary.NativeEndian.AppendUint64(nil, 1)) // fails only if the counter is full, and then the poll wakes up anyway
	})
	defer stop()
	fn()
	for ctx.Err() == nil {
		// The kernel reports a change of the table as an error and as an urgent condition
		// (proc_pid_mountinfo(5)).
		fds := []unix.PollFd{{Fd: int32(table), Events: unix.POLLPRI}, {Fd: int32(wake), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("cannot watch the mount table: poll: %w", err)
		}
		if fds[0].Revents == 0 {
			continue
		}

		fn()
		select {
		case <-ctx.Done():
		case <-time.After(apart):
		}
	}

	return nil
}
