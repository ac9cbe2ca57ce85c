package localdriver

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

// mountEntry is one line of a mount table, as described in proc_pid_mountinfo(5).
type mountEntry struct {
	id     string
	devno  string // "7:3"
	root   string // the mounted part of the filesystem: "/" or the path of a bind's source
	point  string
	fsType string
	source string

	readOnly bool   // of this mount, independent of the filesystem
	options  string // of the filesystem: "rw,shutdown"
}

// readMounts returns the lines of a mount table that contain one of the needles.
func readMounts(file string, needles ...string) (found []mountEntry, err error) {
	err = eachMount(file, needles, func(e mountEntry) { found = append(found, e) })
	return found, err
}

// eachMount calls found with the lines of a mount table that contain one of the needles. It
// discards most lines without parsing them, so thousands of other mounts cost little.
func eachMount(file string, needles []string, found func(mountEntry)) error {
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

func entryOf(m *proc.Mount) mountEntry {
	return mountEntry{
		id:    strconv.Itoa(m.ID),
		devno: fmt.Sprintf("%d:%d", m.Major, m.Minor),
		root:  m.Root, point: m.Mountpoint, fsType: m.FSType, source: m.Source,
		readOnly: slices.Contains(strings.Split(m.Options, ","), "ro"),
		options:  m.VFSOptions,
	}
}

// mountedAt finds the mount table entry with this mount id.
func mountedAt(id uint64) (mountEntry, error) {
	want := strconv.FormatUint(id, 10)
	entries, err := readMounts(proc.OwnMounts, want+" ")
	if err != nil {
		return mountEntry{}, err
	}

	for _, e := range entries {
		if e.id == want {
			return e, nil
		}
	}

	return mountEntry{}, fmt.Errorf("mount %s is not in the mount table", want)
}

// otherNamespaces calls found with the entries that contain a needle, in every mount namespace
// except our own. It passes the id of one process in that namespace. It skips namespaces that it
// may not read or that have disappeared: without root, only the user's own processes are readable.
func otherNamespaces(needles []string, found func(pid int, e mountEntry)) error {
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

		err = eachMount(proc+"/mountinfo", needles, func(e mountEntry) { found(pid, e) })
		if err != nil {
			continue // the process has ended; another process may show the namespace
		}

		seen[ns] = true
	}

	return nil
}

// pathState is the result of one statx on a path, without following links.
type pathState struct {
	exists    bool
	mountRoot bool // this path is the root of a mount
	mountID   uint64
	dev, ino  uint64
	rdev      uint64 // of a device node
	mode      uint16
	size      uint64
}

func (p pathState) isDir() bool     { return p.mode&unix.S_IFMT == unix.S_IFDIR }
func (p pathState) isRegular() bool { return p.mode&unix.S_IFMT == unix.S_IFREG }
func (p pathState) isBlock() bool   { return p.mode&unix.S_IFMT == unix.S_IFBLK }

func statPath(path string) (pathState, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT,
		unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st)
	if errors.Is(err, unix.ENOENT) {
		return pathState{}, nil
	}
	if err != nil {
		return pathState{}, fmt.Errorf("cannot look at %q: %w", path, err)
	}

	return pathState{
		exists:    true,
		mountRoot: st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0,
		mountID:   st.Mnt_id,
		dev:       unix.Mkdev(st.Dev_major, st.Dev_minor),
		ino:       st.Ino,
		rdev:      unix.Mkdev(st.Rdev_major, st.Rdev_minor),
		mode:      st.Mode,
		size:      st.Size,
	}, nil
}
