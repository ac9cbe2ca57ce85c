// Package filetree walks the files below a directory and changes their owner. The files may belong
// to an attacker. An attacker may nest directories without limit, move directories during the walk,
// or prepare set-user-ID bits and access control lists.
//
// The package opens every file relative to the descriptor of its directory. A path that grows or
// changes during the walk therefore does no harm. The walk follows no symbolic links and does not
// enter other mounts.
package filetree

import (
	"errors"

	"golang.org/x/sys/unix"
)

// retry repeats a system call that a signal has interrupted. The Go runtime sends signals, and some
// file systems (FUSE, NFS) abort a call on any signal.
func retry(call func() error) error {
	for {
		err := call()
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
