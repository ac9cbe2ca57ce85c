package localdriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/store"
)

const (
	loopMajor   = 7
	loopControl = "/dev/loop-control"

	// attachTries limits the retries when other programs take free loop devices first.
	attachTries = 64
	// detachWait is the time that a device may stay open (by udev, say) after the order to detach.
	detachWait = 3 * time.Second
	// sectorSize is the logical block size of each loop device, for any disk below.
	sectorSize = 512
	// deletedMark is the kernel's suffix for the path of a file that has been deleted.
	deletedMark = " (deleted)"
)

// loopDevice is a loop device whose backing file is a volume's image.
type loopDevice struct {
	name     string // "loop3"
	rdev     uint64
	readOnly bool
	// autoclear is set if the device detaches itself at its last close. Either another program
	// attached it that way, or a program tried to detach it while it was open.
	autoclear bool
	partial   bool // it shows only a part of the image
	stale     bool // its file was the volume's image, and was deleted, moved or replaced
}

func (l loopDevice) path() string { return "/dev/" + l.name }

// usable reports whether the device can serve a volume.
func (l loopDevice) usable() bool { return !l.autoclear && !l.partial && !l.stale }

// checkLoopControl returns an explanatory error early if the driver cannot use loop devices.
func checkLoopControl() error {
	fd, err := unix.Open(loopControl, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return csierr.Preconditionf("a volume of type %q needs a loop device, and %s cannot be opened: %v; run the driver as root outside any user namespace, or use type %q",
			store.TypeImage, loopControl, err, store.TypeDirectory)
	}
	return unix.Close(fd)
}

func (l loopDevice) number() int { return int(unix.Minor(l.rdev)) }

// imageRef is the file that a volume's loop devices must show.
type imageRef struct {
	path     string
	dev, ino uint64 // 0 if there is no such file
}

func imageAt(path string) (imageRef, error) {
	img := imageRef{path: path}
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	if errors.Is(err, unix.ENOENT) {
		return img, nil
	}
	if err != nil {
		return img, fmt.Errorf("cannot look at the image %q: %w", path, err)
	}

	img.dev, img.ino = st.Dev, st.Ino
	return img, nil
}

// mark returns the file name that the driver stores in the device. It stays there even if the file
// is moved or deleted.
func (i imageRef) mark() string {
	return filepath.Join(filepath.Base(filepath.Dir(i.path)), store.ImageFile)
}

// loopsOf finds the devices of a volume's image, even if the image was deleted or replaced.
func loopsOf(id, path string) ([]loopDevice, error) {
	img, err := imageAt(path)
	if err != nil {
		return nil, err
	}

	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}

	var found []loopDevice
	for _, f := range files {
		backing, err := os.ReadFile(f)
		if err != nil || !strings.Contains(string(backing), id) {
			continue // detached meanwhile, or not ours
		}

		dev, err := inspectLoop(strings.Split(f, "/")[3], img)
		if err != nil {
			return nil, err
		}

		if dev != nil {
			found = append(found, *dev)
		}
	}

	return found, nil
}

// loopOf returns the device with this name if it belongs to the image, otherwise nil.
func loopOf(name, path string) (*loopDevice, error) {
	img, err := imageAt(path)
	if err != nil {
		return nil, err
	}
	return inspectLoop(name, img)
}

// inspectLoop returns the device, or nil if it does not belong to the image. The device and inode
// numbers of the backing file decide, as the kernel reports them. A device with another file still
// belongs to the image if the path of that file is the image's path now, or was when it was
// attached.
func inspectLoop(name string, img imageRef) (*loopDevice, error) {
	l := loopDevice{name: name}
	fd, err := unix.Open(l.path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s, which uses the volume's image: %w", l.path(), err)
	}
	defer func() { _ = unix.Close(fd) }() // opened for reading only

	info, err := unix.IoctlLoopGetStatus64(fd)
	if errors.Is(err, unix.ENXIO) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot ask %s for its backing file: %w", l.path(), err)
	}

	l.stale = info.Device != img.dev || info.Inode != img.ino
	backing := strings.TrimSuffix(loopBacking(int(info.Number)), deletedMark)
	if l.stale && backing != img.path && unix.ByteSliceToString(info.File_name[:]) != img.mark() {
		return nil, nil
	}

	l.rdev = unix.Mkdev(loopMajor, info.Number)
	l.readOnly = info.Flags&unix.LO_FLAGS_READ_ONLY != 0
	l.autoclear = info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0
	l.partial = info.Offset != 0 || info.Sizelimit != 0
	return &l, nil
}

// attachLoop attaches an image to a free device. The image stays attached until detachLoop, even if
// this process dies.
func attachLoop(image string, readOnly bool) (loopDevice, error) {
	l, fd, err := attachOpen(image, readOnly, 0)
	if err != nil {
		return l, err
	}
	return l, unix.Close(fd)
}

// attachOpen attaches an image with additional flags and also returns the open device. It uses
// direct I/O if the filesystem below supports that.
func attachOpen(image string, readOnly bool, more uint32) (loopDevice, int, error) {
	mode, flags := unix.O_RDWR, unix.LO_FLAGS_DIRECT_IO|more
	if readOnly {
		mode, flags = unix.O_RDONLY, flags|unix.LO_FLAGS_READ_ONLY
	}

	fail := func(err error) (loopDevice, int, error) {
		return loopDevice{}, -1, fmt.Errorf("cannot attach %q to a loop device: %w", image, err)
	}
	if err := checkLoopControl(); err != nil {
		return loopDevice{}, -1, err
	}

	file, err := unix.Open(image, mode|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = unix.Close(file) }() // the device holds its own reference

	numbers, err := newLoopNumbers()
	if err != nil {
		return fail(err)
	}

	for range attachTries {
		n, err := numbers.free()
		if err != nil {
			return fail(err)
		}

		l := loopDevice{name: fmt.Sprintf("loop%d", n), rdev: unix.Mkdev(loopMajor, uint32(n)), readOnly: readOnly}
		fd, err := configureLoop(l, mode, &unix.LoopConfig{Fd: uint32(file), Size: sectorSize, Info: loopInfo(image, flags)})
		if errors.Is(err, unix.EBUSY) {
			continue // another process was faster
		}
		if err != nil {
			return fail(err)
		}

		return l, fd, nil
	}

	return fail(errors.New("other processes took every free device"))
}

func loopInfo(path string, flags uint32) unix.LoopInfo64 {
	info := unix.LoopInfo64{Flags: flags}
	copy(info.File_name[:len(info.File_name)-1], imageRef{path: path}.mark())
	return info
}

func configureLoop(l loopDevice, mode int, cfg *unix.LoopConfig) (int, error) {
	fd, err := unix.Open(l.path(), mode|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.IoctlLoopConfigure(fd, cfg); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// detachLoop detaches a device and waits until it is free. For a device in use, the kernel accepts
// the order and detaches at the last close. detachLoop returns an error then.
func detachLoop(ctx context.Context, id, image string, l loopDevice) error {
	fd, err := unix.Open(l.path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot detach %s: %w", l.path(), err)
	}
	err = unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0)
	if err = errors.Join(err, unix.Close(fd)); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("cannot detach %s: %w", l.path(), err)
	}
	return awaitDetached(ctx, detachWait, id, image, l)
}

// awaitDetached waits until a device is free after an order to detach, or after its last close with
// autoclear.
func awaitDetached(ctx context.Context, within time.Duration, id, image string, l loopDevice) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()

	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		if still, err := loopOf(l.name, image); err != nil || still == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot detach %s from volume %q: it is still open%s; it detaches when the last user closes it",
				l.path(), id, whoMounts(l))
		case <-time.After(wait):
		}
	}
}

// flushLoop writes a device's cached data to its image, so that another device on the same image
// reads it.
func flushLoop(l loopDevice) error {
	fd, err := unix.Open(l.path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot flush %s: %w", l.path(), err)
	}
	if err := errors.Join(unix.Fsync(fd), unix.Close(fd)); err != nil {
		return fmt.Errorf("cannot flush %s: %w", l.path(), err)
	}
	return nil
}
