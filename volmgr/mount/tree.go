package mount

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

// tree is the position of a directory in its file system. The path of the directory is not enough,
// because its mount may show only a part of the file system (a bind mount, a btrfs subvolume).
type tree struct{ device, inner string }

func treeAt(r *reader, dir string) (tree, error) {
	fd, err := open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return tree{}, err
	}
	defer closeFD(fd)
	path, err := r.fdPath(fd)
	if err != nil {
		return tree{}, err
	}

	p, err := r.openPoint(fd, statmountMntPoint)
	if err != nil {
		return tree{}, err
	}
	if !within(path, p.at) {
		return tree{}, fmt.Errorf("its path %q is not under its mount point %q", path, p.at)
	}
	return tree{device: p.id.Device, inner: filepath.Join(p.id.Root, strings.TrimPrefix(path, p.at))}, nil
}

// trees caches the positions of a few directories, because every publish asks about the same
// directory. A cached position is valid while the path leads to the same directory in the same
// mount. On kernels without unique mount ids, trees caches nothing.
type trees struct {
	mu    sync.Mutex
	known map[string]knownTree
}

type knownTree struct {
	mount, inode uint64
	tree
}

// contain reports whether the source of a mount is dir or lies below dir. See InTree for the
// details.
func (t *trees) contain(r *reader, id volume.MountIdentity, dir string) (bool, error) {
	st, err := statx(unix.AT_FDCWD, dir, unix.AT_STATX_DONT_SYNC, lookMask|unix.STATX_INO)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}

	at, known := t.find(dir, st)
	if !known {
		if at, err = treeAt(r, dir); err != nil {
			return false, err
		}

		t.keep(dir, st, at)
	}

	return at.device == id.Device && within(id.Root, at.inner), nil
}

func (t *trees) find(dir string, st unix.Statx_t) (tree, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, ok := t.known[dir]
	return k.tree, ok && st.Mask&unix.STATX_MNT_ID_UNIQUE != 0 && k.mount == st.Mnt_id && k.inode == st.Ino
}

func (t *trees) keep(dir string, st unix.Statx_t, now tree) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil || len(t.known) > 8 { // usually trees has one entry, for the directory of all plugin mounts
		t.known = map[string]knownTree{}
	}
	t.known[dir] = knownTree{mount: st.Mnt_id, inode: st.Ino, tree: now}
}
