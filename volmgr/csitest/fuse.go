package csitest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// These constants describe the FUSE requests that an empty directory receives
// (include/uapi/linux/fuse.h).
const (
	fuseForget      = 2
	fuseGetattr     = 3
	fuseInit        = 26
	fuseOpendir     = 27
	fuseReaddir     = 28
	fuseReleasedir  = 29
	fuseInterrupt   = 36
	fuseBatchForget = 42

	fuseHeader = 16      // size of the header of an answer, in bytes
	fuseLarge  = 1 << 17 // size of a buffer for any request, in bytes
)

// envDaemon is an environment variable. If it is set, a process of this binary serves the FUSE file
// system whose device is descriptor 3.
const envDaemon = "CSITEST_FUSE_DAEMON"

// mountFuse mounts a FUSE file system at path. No process serves it yet.
func mountFuse(path string) (*os.File, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open /dev/fuse: %w", err)
	}

	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)
	if err := unix.Mount("csitest", path, "fuse.csitest", unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot mount FUSE at %s: %w", path, err), unix.Close(fd))
	}

	// The call of os.NewFile must follow the mount, because the Go runtime cannot poll the
	// descriptor before it has a FUSE connection.
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// mountDead mounts a file system, answers one request for the root directory, and then stops
// serving. The kernel caches the answer for an hour, so lstat still succeeds.
func mountDead(path string) error {
	dev, err := mountFuse(path)
	if err != nil {
		return err
	}

	served := make(chan struct{})
	go func() {
		defer close(served)
		serveFuse(dev, func(uint32) bool { return true })
	}()
	_, err = os.Lstat(path)
	err = errors.Join(err, dev.Close())
	<-served

	return err
}

// mountHung mounts a file system whose daemon answers only FUSE_INIT. All other requests hang until
// the device is closed.
func mountHung(path string) (*os.File, error) {
	dev, err := mountFuse(path)
	if err != nil {
		return nil, err
	}
	go serveFuse(dev, func(opcode uint32) bool { return opcode == fuseInit })
	return dev, nil
}

// mountServed mounts an empty directory. Another process in this process group serves it until it
// is unmounted.
func mountServed(path string) error {
	dev, err := mountFuse(path)
	if err != nil {
		return err
	}

	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envDaemon+"=1")
	cmd.ExtraFiles = []*os.File{dev}
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("cannot start the FUSE daemon: %w", err), dev.Close())
	}

	go func() { _ = cmd.Wait() }() // waits for the process to end; its exit status does not matter
	_, err = os.ReadDir(path)
	return errors.Join(err, dev.Close())
}

// daemon serves the FUSE device at descriptor 3 until the file system is unmounted.
func daemon() {
	serveFuse(os.NewFile(3, "/dev/fuse"), func(uint32) bool { return true })
}

// serveFuse answers the requests that may permits, until dev is closed or its file system is
// unmounted.
func serveFuse(dev *os.File, may func(opcode uint32) bool) {
	buf := make([]byte, fuseLarge)
	for {
		n, err := dev.Read(buf)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINTR): // the kernel has aborted the request
			continue
		case err != nil:
			return
		}

		if !may(binary.NativeEndian.Uint32(buf[4:])) {
			continue
		}
		if answer := fuseAnswer(buf[:n]); answer != nil {
			_, _ = dev.Write(answer) // an error is ignored, because the requester may have given up
		}
	}
}

// fuseAnswer returns the answer of an empty directory, or nil if the request needs no answer.
func fuseAnswer(request []byte) []byte {
	ne := binary.NativeEndian
	answer := func(errno unix.Errno, size int) []byte {
		a := make([]byte, fuseHeader+size)
		ne.PutUint32(a, uint32(len(a)))
		ne.PutUint32(a[4:], uint32(-int32(errno)))
		ne.PutUint64(a[8:], ne.Uint64(request[8:]))
		return a
	}

	switch ne.Uint32(request[4:]) {
	case fuseForget, fuseBatchForget, fuseInterrupt:
		return nil
	case fuseInit:
		a := answer(0, 64)
		ne.PutUint32(a[fuseHeader:], 7)    // version 7.31 of the protocol
		ne.PutUint32(a[fuseHeader+4:], 31) //
		ne.PutUint32(a[fuseHeader+20:], 1<<16)
		return a
	case fuseGetattr:
		a := answer(0, 104)
		ne.PutUint64(a[fuseHeader:], 3600) // number of seconds for which the kernel may cache the answer
		attr := a[fuseHeader+16:]
		ne.PutUint64(attr, 1) // inode number
		ne.PutUint32(attr[60:], unix.S_IFDIR|0o755)
		ne.PutUint32(attr[64:], 2) // number of links
		return a
	case fuseOpendir:
		return answer(0, 16)
	case fuseReaddir, fuseReleasedir:
		return answer(0, 0)
	default:
		return answer(unix.ENOSYS, 0)
	}
}
