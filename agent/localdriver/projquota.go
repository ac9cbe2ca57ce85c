package localdriver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/volmgr/filetree"
)

// These constants come from linux/quota.h, linux/dqblk_xfs.h and linux/fs.h, because the package
// x/sys lacks them.
const (
	projectQuota = 2                          // PRJQUOTA
	getState     = 0x5805<<8 | projectQuota   // Q_XGETQSTAT, which not only xfs answers
	getQuota     = 0x800007<<8 | projectQuota // Q_GETQUOTA
	setQuota     = 0x800008<<8 | projectQuota // Q_SETQUOTA

	stateCounts   = 1 << 4 // FS_QUOTA_PDQ_ACCT
	stateEnforces = 1 << 5 // FS_QUOTA_PDQ_ENFD
	validLimits   = 1      // QIF_BLIMITS

	getAttr     = 0x801c581f // FS_IOC_FSGETXATTR
	setAttr     = 0x401c5820 // FS_IOC_FSSETXATTR
	attrInherit = 0x200      // FS_XFLAG_PROJINHERIT
)

// dqblk is struct if_dqblk. Limits are in KiB, but the usage is in bytes.
type dqblk struct {
	hard, soft, used             uint64
	inodeHard, inodeSoft, inodes uint64
	blockGrace, inodeGrace       uint64
	valid                        uint32
	_                            uint32
}

// fsxattr is struct fsxattr.
type fsxattr struct {
	flags, extentSize, extents, project, cowExtentSize uint32
	_                                                  [8]byte
}

// kernelProjects uses the project quotas of the filesystem that contains the directory dir.
type kernelProjects struct{ dir string }

func (k kernelProjects) check() error {
	why := fmt.Errorf("the filesystem of %q has no project quota: use xfs, or ext4 with the features quota and project, mounted with prjquota; Linux must be 5.14 or newer", k.dir)
	var state [128]byte // receives a struct fs_quota_stat
	if err := k.call(getState, 0, unsafe.Pointer(&state)); err != nil {
		return fmt.Errorf("%w (%w)", why, err)
	}

	switch flags := binary.NativeEndian.Uint16(state[2:]); {
	case flags&stateCounts == 0:
		return why
	case flags&stateEnforces == 0:
		return fmt.Errorf("the filesystem of %q counts the space of projects, but does not enforce limits: mount it with prjquota", k.dir)
	}

	return nil
}

func (k kernelProjects) limit(project uint32, bytes int64) error {
	q := dqblk{hard: uint64(bytes) / 1024, valid: validLimits}
	if err := k.call(setQuota, project, unsafe.Pointer(&q)); err != nil {
		return fmt.Errorf("cannot limit project %d on the filesystem of %q: %w", project, k.dir, err)
	}
	return nil
}

func (k kernelProjects) usage(project uint32) (used, limit int64, err error) {
	var q dqblk
	err = k.call(getQuota, project, unsafe.Pointer(&q))
	if errors.Is(err, unix.ENOENT) {
		return 0, 0, nil // the project has never been used, so the kernel does not know it
	}
	if err != nil {
		return 0, 0, fmt.Errorf("cannot ask for project %d on the filesystem of %q: %w", project, k.dir, err)
	}
	return int64(q.used), int64(q.hard) * 1024, nil
}

// call calls quotactl_fd(2), which needs no device, unlike quotactl(2).
func (k kernelProjects) call(cmd, id uint32, arg unsafe.Pointer) error {
	fd, err := unix.Open(k.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	// Closing a directory cannot lose data.
	defer func() { _ = unix.Close(fd) }()
	if _, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), uintptr(cmd), uintptr(id), uintptr(arg), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// assign makes everything in a directory belong to a project. It begins with the directory itself,
// so that files that are made in it meanwhile inherit the project. It skips links, pipes and
// devices, because they take no space.
func (k kernelProjects) assign(ctx context.Context, dir string, project uint32) error {
	fail := func(err error) error { return fmt.Errorf("cannot assign %q to project %d: %w", dir, project, err) }
	root, err := mounts.OpenWritable(dir)
	if err != nil {
		return fail(err)
	}
	// Closing a directory cannot lose data.
	defer func() { _ = unix.Close(root) }()

	if err := setProject(root, project, true); err != nil {
		return fail(err)
	}

	visit := func(fd int, st *unix.Statx_t) error {
		kind := st.Mode & unix.S_IFMT
		if kind != unix.S_IFDIR && kind != unix.S_IFREG {
			return nil
		}

		// The ioctl needs a descriptor that was opened without O_PATH. The path in /proc leads to
		// exactly the same file.
		open, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}

		return errors.Join(setProject(open, project, kind == unix.S_IFDIR), unix.Close(open))
	}
	if err := filetree.Below(ctx, root, visit); err != nil {
		return fail(err)
	}

	return nil
}

func setProject(fd int, project uint32, inherit bool) error {
	var a fsxattr
	if err := mounts.Ioctl(fd, getAttr, unsafe.Pointer(&a)); err != nil {
		return err
	}

	want := a
	want.project = project
	if inherit {
		want.flags |= attrInherit
	}

	if want == a {
		return nil
	}

	return mounts.Ioctl(fd, setAttr, unsafe.Pointer(&want))
}
