package mounts

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/proc"
)

// MountEntry is one line of a mount table, as described in proc_pid_mountinfo(5).
type MountEntry struct {
	id    string
	Devno string // such as "7:3"
	// the directory or file of the filesystem that the mount shows; "/" means the whole filesystem
	Root   string
	Point  string
	FsType string
	Source string

	ReadOnly bool   // the mount is read-only; the filesystem may still be writable
	Options  string // options of the filesystem, such as "rw,shutdown"
}

// ReadMounts returns those lines of a mount table that contain at least one of the strings in
// needles.
func ReadMounts(file string, needles ...string) (found []MountEntry, err error) {
	err = eachMount(file, needles, func(e MountEntry) { found = append(found, e) })
	return found, err
}

// eachMount calls the function found for those lines of a mount table that contain at least one of
// the strings in needles. It discards most lines without parsing them, so thousands of other mounts
// cost little time.
func eachMount(file string, needles []string, found func(MountEntry)) error {
	has := func(line []byte) bool {
		return slices.ContainsFunc(needles, func(n string) bool { return bytes.Contains(line, []byte(n)) })
	}
	_, err := proc.ReadMounts(file, has, func(m *proc.Mount) (skip, stop bool) {
		found(entryOf(m))
		return true, false
	})
	if err != nil {
		return fmt.Errorf("cannot read the mount table: %w", err)
	}

	return nil
}

func entryOf(m *proc.Mount) MountEntry {
	return MountEntry{
		id:    strconv.Itoa(m.ID),
		Devno: fmt.Sprintf("%d:%d", m.Major, m.Minor),
		Root:  m.Root, Point: m.Mountpoint, FsType: m.FSType, Source: m.Source,
		ReadOnly: slices.Contains(strings.Split(m.Options, ","), "ro"),
		Options:  m.VFSOptions,
	}
}

// MountedAt finds the mount table entry with the given mount id.
func MountedAt(id uint64) (MountEntry, error) {
	want := strconv.FormatUint(id, 10)
	entries, err := ReadMounts(proc.OwnMounts, want+" ")
	if err != nil {
		return MountEntry{}, err
	}

	for _, e := range entries {
		if e.id == want {
			return e, nil
		}
	}

	return MountEntry{}, fmt.Errorf("mount %s is not in the mount table", want)
}

// OtherNamespaces reads the mount tables of all mount namespaces except our own. It calls the
// function found for each line that contains at least one of the strings in needles, with the id of
// a process in the namespace. It skips namespaces that have disappeared or that it may not read.
// Without root, it can read only the namespaces of the user's own processes.
func OtherNamespaces(needles []string, found func(pid int, e MountEntry)) error {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return fmt.Errorf("cannot tell our own mount namespace: %w", err)
	}

	links, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
	if err != nil {
		return err
	}

	seen := map[string]bool{own: true}
	for _, link := range links {
		ns, err := os.Readlink(link)
		if err != nil || seen[ns] {
			continue
		}

		proc := strings.TrimSuffix(link, "/ns/mnt")
		pid, err := strconv.Atoi(filepath.Base(proc))
		if err != nil {
			continue
		}

		err = eachMount(proc+"/mountinfo", needles, func(e MountEntry) { found(pid, e) })
		if err != nil {
			continue // the process has ended; try another process of the same namespace
		}

		seen[ns] = true
	}

	return nil
}

// PathState is the result of one statx call for a path. A link at the end of the path is not
// followed.
type PathState struct {
	Exists    bool
	MountRoot bool // this path is the root of a mount
	MountID   uint64
	Dev, Ino  uint64
	Rdev      uint64 // the device number, if the path is a device node
	mode      uint16
	Size      uint64
}

// IsDir reports whether the path is a directory.
func (p PathState) IsDir() bool { return p.mode&unix.S_IFMT == unix.S_IFDIR }

// IsRegular reports whether the path is a regular file.
func (p PathState) IsRegular() bool { return p.mode&unix.S_IFMT == unix.S_IFREG }

// IsBlock reports whether the path is a block device.
func (p PathState) IsBlock() bool { return p.mode&unix.S_IFMT == unix.S_IFBLK }

// StatPath examines a path. It does not follow a link at the end of the path. A missing path is not
// an error.
func StatPath(path string) (PathState, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT,
		unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st)
	if errors.Is(err, unix.ENOENT) {
		return PathState{}, nil
	}
	if err != nil {
		return PathState{}, fmt.Errorf("cannot look at %q: %w", path, err)
	}

	return PathState{
		Exists:    true,
		MountRoot: st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0,
		MountID:   st.Mnt_id,
		Dev:       unix.Mkdev(st.Dev_major, st.Dev_minor),
		Ino:       st.Ino,
		Rdev:      unix.Mkdev(st.Rdev_major, st.Rdev_minor),
		mode:      st.Mode,
		Size:      st.Size,
	}, nil
}
