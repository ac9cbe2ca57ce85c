// Package filetree walks the files below a directory and changes who owns them. The files may
// belong to a user who wants to mislead the caller: who nests directories without end, moves
// them during the walk, or leaves set-user-ID bits and access control lists behind.
//
// Everything is reached by descriptors, so no path that grows or changes meanwhile matters, and
// neither a symbolic link nor a mount point is crossed.
package filetree

import (
	"errors"

	"golang.org/x/sys/unix"
)

// retry repeats a system call that a signal interrupted. The Go runtime sends signals, and some
// file systems (FUSE, NFS) interrupt a call for any of them.
func retry(call func() error) error {
	for {
		err := call()
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
