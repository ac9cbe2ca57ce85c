package localdriver

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxTreeDepth bounds the directories that are open at once while a tree is walked.
const maxTreeDepth = 1000

// treeWalk visits everything in a directory, and a directory after what is in it. It goes by
// descriptors alone and follows no link. A directory opened with openWritable has no other mounts
// in it.
type treeWalk struct {
	ctx context.Context
	// visit gets a descriptor that was opened with O_PATH: opening a device or a pipe does something.
	visit func(fd int, st *unix.Stat_t) error
}

// below visits what is in a directory, not the directory itself.
func (w treeWalk) below(dir, depth int) error {
	if depth > maxTreeDepth {
		return preconditionf("its directories are nested deeper than %d", maxTreeDepth)
	}
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "directory")
	defer func() { _ = f.Close() }() // it is only read
	for {
		names, err := f.Readdirnames(512)
		for _, name := range names {
			if err := w.entry(fd, name, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (w treeWalk) entry(dir int, name string, depth int) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil // removed meanwhile
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // O_PATH holds nothing that could fail
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := w.below(fd, depth+1); err != nil {
			return err
		}
	}
	return w.visit(fd, &st)
}
