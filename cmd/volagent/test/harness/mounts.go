package harness

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Mounts returns the lines of the mount table whose mount points are below the host's directory.
func (h *Host) Mounts() string {
	raw, err := h.Place.MountTable()
	h.Must(err)
	var lines []string
	for line := range strings.Lines(string(raw)) {
		if strings.Contains(line, " "+h.Dir+"/") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// ExpectNoMounts asserts that no mount remains below the host's directory.
func (h *Host) ExpectNoMounts() {
	h.T.Helper()
	if left := h.Mounts(); left != "" {
		h.T.Errorf("still mounted:\n%s", left)
	}
}

// Unmount unmounts a path, which must be mounted. The unmount is lazy, because the agent may have
// the path open for a check.
func Unmount(t *testing.T, path string) {
	t.Helper()
	if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
		t.Fatalf("cannot unmount %s: %v", path, err)
	}
}

// UnmountAll unmounts all mounts below the host's directory.
func UnmountAll(h *Host) {
	lines := strings.Split(strings.TrimSpace(h.Mounts()), "\n")
	for _, line := range slices.Backward(lines) {
		if f := strings.Fields(line); len(f) > 4 {
			h.Must(h.Place.Enter(func() error { return syscall.Unmount(f[4], syscall.MNT_DETACH) }))
		}
	}
}

// detachLoops detaches the loop devices whose backing files are below the host's directory. It
// waits until none remains, because some devices detach only after the unmount of their file
// system.
func detachLoops(h *Host) {
	h.Await("the loop devices to go", func() bool {
		out, err := exec.Command("losetup", "-l", "-n", "-O", "NAME,BACK-FILE").Output()
		h.Must(err)
		none := true
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], h.Dir+"/") {
				none = false
				_ = exec.Command("losetup", "-d", f[0]).Run() // the loop checks the result
			}
		}
		return none
	})
}

// UnguardAll clears the immutable flag of all directories below the host's directory, so that they
// can be removed.
func (h *Host) UnguardAll() {
	h.Must(filepath.WalkDir(h.Dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			// Some file systems have no inode flags.
			_, _ = DirFlags(path, func(flags uint32) uint32 { return flags &^ Immutable })
		}
		return nil
	}))
}

// Immutable is the flag FS_IMMUTABLE_FL from linux/fs.h.
const Immutable = 0x10

// DirFlags returns the inode flags of a directory, as described in ioctl_iflags(2). If set is not
// nil, DirFlags also changes the flags to the result of set.
func DirFlags(dir string, set func(uint32) uint32) (uint32, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil || set == nil {
		return flags, err
	}
	return flags, unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(set(flags)))
}

// DirMode returns the permissions of a directory below d/csi. The arguments parts are the elements
// of the directory's path.
func DirMode(h *Host, parts ...string) os.FileMode {
	h.T.Helper()
	info, err := os.Stat(filepath.Join(append([]string{h.Dir, "d/csi"}, parts...)...))
	h.Must(err)
	return info.Mode().Perm()
}

// OwnerAndMode returns the owner, group and mode of a file. It does not follow a symbolic link.
func OwnerAndMode(h *Host, path string) string {
	h.T.Helper()
	var st syscall.Stat_t
	h.Must(syscall.Lstat(path, &st))
	return fmt.Sprintf("%d:%d %04o", st.Uid, st.Gid, st.Mode&0o7777)
}
