package tree

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/jobs"
)

// copyChunk is the number of bytes that are copied between two checks of the context.
const copyChunk = 8 << 20

// ErrNoReflink means that a filesystem cannot share the data of two files.
var ErrNoReflink = errors.New("the filesystem cannot clone files")

// Reflink makes the empty file dst share the data of src. Later changes of src do not change dst.
func Reflink(src, dst *os.File) error {
	err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
	for _, e := range []error{unix.EOPNOTSUPP, unix.EXDEV, unix.EINVAL, unix.ENOTTY, unix.ENOSYS, unix.EPERM} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", ErrNoReflink, err)
		}
	}
	return err
}

// copyData copies the first size bytes of a file, and keeps holes. If the source becomes shorter
// during the copy, that is not an error; the copy then ends with a hole.
func copyData(ctx context.Context, src, dst *os.File, size int64, p *jobs.Progress) error {
	if err := dst.Truncate(size); err != nil {
		return err
	}

	in, out := int(src.Fd()), int(dst.Fd())
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

		for at, hole = data, min(hole, size); at < hole; {
			if err := ctx.Err(); err != nil {
				return err
			}

			from, to := at, at
			n, err := unix.CopyFileRange(in, &from, out, &to, int(min(copyChunk, hole-at)), 0)
			if errors.Is(err, unix.EINTR) {
				continue
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
	}

	return nil
}

// ImageCopy is a running copy of an image: the open source and the open copy.
type ImageCopy struct{ Src, Dst *os.File }

// OpenImageCopy opens an image for a copy. It returns an error if the image is shorter than
// recorded, because the copy would hide the loss of data.
func OpenImageCopy(src, dst string, recorded int64) (*ImageCopy, error) {
	in, err := os.OpenFile(src, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, csierr.Preconditionf("the image that holds the data is missing: %s", src)
	}
	if err != nil {
		return nil, err
	}

	st, err := in.Stat()
	if err == nil && st.Size() < recorded {
		err = csierr.Preconditionf("its image has %d bytes, less than the %d recorded: a part of it is lost", st.Size(), recorded)
	}
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}

	out, err := os.OpenFile(dst, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}

	return &ImageCopy{in, out}, nil
}

// Finish waits until the copy is on disk and closes both files.
func (c *ImageCopy) Finish() error {
	return errors.Join(c.Dst.Sync(), c.Dst.Close(), c.Src.Close())
}

// Abandon closes both files.
// closing errors have no effect, because the copy is discarded
func (c *ImageCopy) Abandon() { _, _ = c.Dst.Close(), c.Src.Close() }

// Allocated returns the size of the source, and how many of its bytes are not in holes.
func (c *ImageCopy) Allocated() (size, bytes int64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(c.Src.Fd()), &st); err != nil {
		return 0, 0, err
	}
	return st.Size, st.Blocks * 512, nil
}

// Plain reads and writes the data instead of cloning the file. It returns an error if the disk has
// too little space.
func (c *ImageCopy) Plain(ctx context.Context, p *jobs.Progress) error {
	size, bytes, err := c.Allocated()
	if err != nil {
		return err
	}
	if err := needSpace(c.Dst, bytes); err != nil {
		return err
	}
	p.Total.Add(bytes)
	return copyData(ctx, c.Src, c.Dst, size, p)
}

// CopyImage copies an image that has no writers, and syncs the copy.
func CopyImage(ctx context.Context, src, dst string, recorded int64, p *jobs.Progress) error {
	c, err := OpenImageCopy(src, dst, recorded)
	if err != nil {
		return err
	}

	err = Reflink(c.Src, c.Dst)
	if errors.Is(err, ErrNoReflink) {
		err = c.Plain(ctx, p)
	}
	if err != nil {
		c.Abandon()
		return err
	}

	return c.Finish()
}

// needSpace returns an error if a copy does not fit on the filesystem of f. It is called before the
// copy starts.
func needSpace(f *os.File, bytes int64) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return err
	}
	if free := int64(fs.Bavail) * fs.Frsize; free < bytes {
		return csierr.Errorf(codes.ResourceExhausted, "the copy needs %d bytes (%s), and %d (%s) are free on the filesystem of the driver's state directory",
			bytes, jobs.HumanBytes(bytes), free, jobs.HumanBytes(free))
	}
	return nil
}
