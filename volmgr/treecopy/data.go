package treecopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// copyChunk is the number of bytes that are copied between two checks of the context.
const copyChunk = 8 << 20

// readChunk is the number of bytes that are read at once.
const readChunk = 256 << 10

// ErrNoReflink means that a filesystem cannot share the data of two files.
var ErrNoReflink = errors.New("the filesystem cannot clone files")

// Reflink makes the empty file dst share the data of src. Later changes of src do not change dst. If
// the filesystem cannot do that, the error wraps ErrNoReflink.
func Reflink(src, dst *os.File) error {
	err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
	for _, e := range []error{unix.EOPNOTSUPP, unix.EXDEV, unix.EINVAL, unix.ENOTTY, unix.ENOSYS, unix.EPERM} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", ErrNoReflink, err)
		}
	}
	return err
}

// Data copies the first size bytes of a file, and keeps holes. If the source becomes shorter during
// the copy, that is not an error; the copy then ends with a hole.
func Data(ctx context.Context, src, dst *os.File, size int64, p *Progress) error {
	if err := dst.Truncate(size); err != nil {
		return err
	}

	in := int(src.Fd())
	for at := int64(0); at < size; {
		data, err := unix.Seek(in, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // the source ends with a hole
		}
		if err != nil {
			return err
		}

		hole, err := unix.Seek(in, data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}

		if at = min(hole, size); data < at {
			if err := copyRange(ctx, src, dst, data, at, p); err != nil {
				return err
			}
		}
	}

	return nil
}

// copyRange copies the bytes from at to end. It stops without an error where the source ends.
func copyRange(ctx context.Context, src, dst *os.File, at, end int64, p *Progress) error {
	for at < end {
		if err := ctx.Err(); err != nil {
			return err
		}

		from, to := at, at
		n, err := unix.CopyFileRange(int(src.Fd()), &from, int(dst.Fd()), &to, int(min(copyChunk, end-at)), 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		for _, e := range []error{unix.EXDEV, unix.EOPNOTSUPP, unix.EINVAL, unix.ENOSYS} {
			if errors.Is(err, e) { // the kernel cannot copy between these two filesystems
				return readAndWrite(ctx, src, dst, at, end, p)
			}
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}

		at += int64(n)
		p.Done.Add(int64(n))
	}

	return nil
}

// readAndWrite does the same as copyRange, for filesystems between which the kernel cannot copy. It
// writes no block of zeros, because a new file reads as zeros.
func readAndWrite(ctx context.Context, src, dst *os.File, at, end int64, p *Progress) error {
	buf := make([]byte, readChunk)
	zeros := make([]byte, readChunk)
	for at < end {
		if err := ctx.Err(); err != nil {
			return err
		}

		n, err := src.ReadAt(buf[:min(readChunk, end-at)], at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n == 0 {
			return nil
		}
		if !bytes.Equal(buf[:n], zeros[:n]) {
			if _, err := dst.WriteAt(buf[:n], at); err != nil {
				return err
			}
		}

		at += int64(n)
		p.Done.Add(int64(n))
	}

	return nil
}
