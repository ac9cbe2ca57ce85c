package loopdev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/agent/localdriver/store"
	"github.com/volagent/volagent/volmgr/proc"
)

// LoopDevice is a loop device whose backing file is a volume's image.
type LoopDevice struct {
	Name     string // such as "loop3"
	Rdev     uint64
	ReadOnly bool
	// Autoclear is set if the device detaches itself at its last close. Either another program
	// attached it that way, or a program tried to detach it while it was open.
	Autoclear bool
	partial   bool // the device shows only a range of the image
	// the backing file was the image of the volume, but has been deleted, moved or replaced
	Stale bool
}

// Path returns the path of the device.
func (l LoopDevice) Path() string { return "/dev/" + l.Name }

// Usable reports whether the device can serve a volume.
func (l LoopDevice) Usable() bool { return !l.Autoclear && !l.partial && !l.Stale }

// CheckLoopControl returns an error with an explanation if the driver cannot use loop devices.
func CheckLoopControl() error {
	fd, err := unix.Open(LoopControl, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return csierr.Preconditionf("a volume of type %q needs a loop device, and %s cannot be opened: %v; run the driver as root outside any user namespace, or use type %q",
			store.TypeImage, LoopControl, err, store.TypeDirectory)
	}
	return unix.Close(fd)
}

// Number returns the device's minor number.
func (l LoopDevice) Number() int { return int(unix.Minor(l.Rdev)) }

// ImageRef identifies the image file that a volume's loop devices must have as their backing file.
type ImageRef struct {
	Path     string
	Dev, Ino uint64 // 0 if there is no file at the path
}

// ImageAt returns the ImageRef of the file at path. A missing file is not an error.
func ImageAt(path string) (ImageRef, error) {
	img := ImageRef{Path: path}
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	if errors.Is(err, unix.ENOENT) {
		return img, nil
	}
	if err != nil {
		return img, fmt.Errorf("cannot look at the image %q: %w", path, err)
	}

	img.Dev, img.Ino = st.Dev, st.Ino
	return img, nil
}

// mark returns the file name that the driver stores in the loop device. The device keeps this name
// even if the file is moved or deleted.
func (i ImageRef) mark() string {
	return filepath.Join(filepath.Base(filepath.Dir(i.Path)), store.ImageFile)
}

// LoopsOf finds the devices of a volume's image, even if the image was deleted or replaced.
func LoopsOf(id, path string) ([]LoopDevice, error) {
	img, err := ImageAt(path)
	if err != nil {
		return nil, err
	}

	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}

	var found []LoopDevice
	for _, f := range files {
		backing, err := os.ReadFile(f)
		if err != nil || !strings.Contains(string(backing), id) {
			continue // the device was detached in the meantime, or belongs to another image
		}

		dev, err := InspectLoop(strings.Split(f, "/")[3], img)
		if err != nil {
			return nil, err
		}

		if dev != nil {
			found = append(found, *dev)
		}
	}

	return found, nil
}

// LoopOf returns the device with the given name, or nil if the device does not belong to the image
// at path.
func LoopOf(name, path string) (*LoopDevice, error) {
	img, err := ImageAt(path)
	if err != nil {
		return nil, err
	}
	return InspectLoop(name, img)
}

// InspectLoop returns a device, or nil if the device does not belong to the image. A device belongs
// to the image if the kernel reports the image's device and inode numbers for its backing file. It
// also belongs to the image if its backing file has the image's path now, or had this path when it
// was attached.
func InspectLoop(name string, img ImageRef) (*LoopDevice, error) {
	l := LoopDevice{Name: name}
	fd, err := unix.Open(l.Path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s, which uses the volume's image: %w", l.Path(), err)
	}
	// closing cannot lose data, because the device was only read
	defer func() { _ = unix.Close(fd) }()

	info, err := unix.IoctlLoopGetStatus64(fd)
	if errors.Is(err, unix.ENXIO) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot ask %s for its backing file: %w", l.Path(), err)
	}

	l.Stale = info.Device != img.Dev || info.Inode != img.Ino
	backing := strings.TrimSuffix(LoopBacking(int(info.Number)), deletedMark)
	if l.Stale && backing != img.Path && unix.ByteSliceToString(info.File_name[:]) != img.mark() {
		return nil, nil
	}

	l.Rdev = unix.Mkdev(LoopMajor, info.Number)
	l.ReadOnly = info.Flags&unix.LO_FLAGS_READ_ONLY != 0
	l.Autoclear = info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0
	l.partial = info.Offset != 0 || info.Sizelimit != 0
	return &l, nil
}

// AttachLoop attaches an image to a free loop device. The image stays attached until DetachLoop is
// called, even if this process dies.
func AttachLoop(image string, readOnly bool) (LoopDevice, error) {
	l, fd, err := AttachOpen(image, readOnly, 0)
	if err != nil {
		return l, err
	}
	return l, unix.Close(fd)
}

// AttachOpen attaches an image with additional flags and also returns the open device. It uses
// direct I/O if the filesystem that contains the image supports direct I/O.
func AttachOpen(image string, readOnly bool, more uint32) (LoopDevice, int, error) {
	mode, flags := unix.O_RDWR, unix.LO_FLAGS_DIRECT_IO|more
	if readOnly {
		mode, flags = unix.O_RDONLY, flags|unix.LO_FLAGS_READ_ONLY
	}

	fail := func(err error) (LoopDevice, int, error) {
		return LoopDevice{}, -1, fmt.Errorf("cannot attach %q to a loop device: %w", image, err)
	}
	if err := CheckLoopControl(); err != nil {
		return LoopDevice{}, -1, err
	}

	file, err := unix.Open(image, mode|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = unix.Close(file) }() // the loop device has its own reference to the file

	numbers, err := newLoopNumbers()
	if err != nil {
		return fail(err)
	}

	for range attachTries {
		n, err := numbers.free()
		if err != nil {
			return fail(err)
		}

		l := LoopDevice{Name: fmt.Sprintf("loop%d", n), Rdev: unix.Mkdev(LoopMajor, uint32(n)), ReadOnly: readOnly}
		fd, err := configureLoop(l, mode, &unix.LoopConfig{Fd: uint32(file), Size: sectorSize, Info: loopInfo(image, flags)})
		if errors.Is(err, unix.EBUSY) {
			continue // another process has attached a file to this device first
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
	copy(info.File_name[:len(info.File_name)-1], ImageRef{Path: path}.mark())
	return info
}

func configureLoop(l LoopDevice, mode int, cfg *unix.LoopConfig) (int, error) {
	fd, err := unix.Open(l.Path(), mode|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.IoctlLoopConfigure(fd, cfg); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// DetachLoop detaches a device and waits until the device is free. If the device is in use, the
// kernel accepts the request but detaches the device only at its last close. DetachLoop then
// returns an error after a time limit.
func DetachLoop(ctx context.Context, id, image string, l LoopDevice) error {
	fd, err := unix.Open(l.Path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot detach %s: %w", l.Path(), err)
	}
	err = unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0)
	if err = errors.Join(err, unix.Close(fd)); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("cannot detach %s: %w", l.Path(), err)
	}
	return AwaitDetached(ctx, detachWait, id, image, l)
}

// AwaitDetached waits until a device is free. The caller has requested to detach the device, or has
// closed a device that detaches itself (autoclear).
func AwaitDetached(ctx context.Context, within time.Duration, id, image string, l LoopDevice) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()

	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		if still, err := LoopOf(l.Name, image); err != nil || still == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot detach %s from volume %q: it is still open%s; it detaches when the last user closes it",
				l.Path(), id, WhoMounts(l))
		case <-time.After(wait):
		}
	}
}

// FlushLoop writes a device's cached data to its image, so that another device of the same image
// shows the data.
func FlushLoop(l LoopDevice) error {
	fd, err := unix.Open(l.Path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot flush %s: %w", l.Path(), err)
	}
	if err := errors.Join(unix.Fsync(fd), unix.Close(fd)); err != nil {
		return fmt.Errorf("cannot flush %s: %w", l.Path(), err)
	}
	return nil
}

// Devno returns the device number in the form of a mount table, such as "7:3".
func (l LoopDevice) Devno() string {
	return fmt.Sprintf("%d:%d", unix.Major(l.Rdev), unix.Minor(l.Rdev))
}

// Holds reports whether a mount shows the filesystem on the device. The mounts of a btrfs have
// their own device numbers, so for a btrfs, Holds compares the source of the mount.
func (l LoopDevice) Holds(e mounts.MountEntry) bool {
	return e.Devno == l.Devno() || e.FsType == "btrfs" && e.Source == l.Path()
}

// IsNodeOf reports whether a mount is a bind mount of the device's node.
func (l LoopDevice) IsNodeOf(e mounts.MountEntry) bool {
	if path.Base(e.Root) != l.Name || e.Point == l.Path() {
		return false
	}
	st, err := mounts.StatPath(e.Point)
	return err == nil && st.IsBlock() && st.Rdev == l.Rdev
}

// WhoMounts describes the mounts of the filesystem on a device, for an error message.
func WhoMounts(l LoopDevice) string {
	var who []string
	want := []string{"/" + l.Name, " " + l.Devno() + " "}
	if own, err := mounts.ReadMounts(proc.OwnMounts, want...); err == nil {
		for _, e := range own {
			if l.Holds(e) || l.IsNodeOf(e) {
				who = append(who, fmt.Sprintf("mounted at %q", e.Point))
			}
		}
	}

	err := mounts.OtherNamespaces(want, func(pid int, e mounts.MountEntry) {
		if l.Holds(e) {
			who = append(who, fmt.Sprintf("mounted at %q in the mount namespace of process %d", e.Point, pid))
		}
	})
	if err != nil || len(who) == 0 {
		return ""
	}

	return " (" + strings.Join(who, ", ") + ")"
}
