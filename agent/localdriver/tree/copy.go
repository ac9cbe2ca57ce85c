package tree

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/jobs"
	"github.com/volagent/volagent/volmgr/treecopy"
)

// CopyTree copies the directory src to dst, as treecopy.Tree does. Its errors have the gRPC codes of
// the driver.
func CopyTree(ctx context.Context, src, dst string, p *jobs.Progress) error {
	return coded(treecopy.Tree(ctx, src, dst, &p.Progress))
}

// coded gives an error of treecopy the gRPC code that the caller of the driver must receive.
func coded(err error) error {
	var space *treecopy.SpaceError
	switch {
	case errors.As(err, &space):
		return csierr.Errorf(codes.ResourceExhausted, "the copy needs %d bytes (%s), and %d (%s) are free on the filesystem of the driver's state directory",
			space.Needed, jobs.HumanBytes(space.Needed), space.Free, jobs.HumanBytes(space.Free))
	case errors.Is(err, treecopy.ErrMissing), errors.Is(err, treecopy.ErrMountInside), errors.Is(err, treecopy.ErrTooDeep):
		return csierr.Preconditionf("%v", err)
	}
	return err
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
	if err := treecopy.Room(c.Dst, bytes); err != nil {
		return coded(err)
	}
	p.Total.Add(bytes)
	return treecopy.Data(ctx, c.Src, c.Dst, size, &p.Progress)
}

// CopyImage copies an image that has no writers, and syncs the copy.
func CopyImage(ctx context.Context, src, dst string, recorded int64, p *jobs.Progress) error {
	c, err := OpenImageCopy(src, dst, recorded)
	if err != nil {
		return err
	}

	err = treecopy.Reflink(c.Src, c.Dst)
	if errors.Is(err, treecopy.ErrNoReflink) {
		err = c.Plain(ctx, p)
	}
	if err != nil {
		c.Abandon()
		return err
	}

	return c.Finish()
}
