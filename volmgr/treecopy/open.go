package treecopy

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// openBeneath opens an entry of an open directory. The kernel refuses to cross a mount (EXDEV) or
// to follow a link.
func openBeneath(dir int, name string, flags uint64) (*os.File, error) {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.EXDEV) {
		return nil, ErrMountInside
	}
	if err != nil {
		return nil, err
	}

	return os.NewFile(uintptr(fd), name), nil
}

func openDir(dir int, name string) (*os.File, error) {
	return openBeneath(dir, name, unix.O_DIRECTORY)
}
