package usage

import (
	"errors"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/imagefs"
	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/agent/localdriver/store"
	"github.com/volagent/volagent/volmgr/proc"
)

// Use is a mount table entry of a volume or of a directory in it.
type Use struct {
	Point string
	Loop  *loopdev.LoopDevice // the loop device, if the volume is an image
	// the mount is a bind mount of the loop device's node, not of the filesystem on the device
	Node bool
}

// UsesOf lists the mounts of a volume in our own mount namespace. loops are the volume's loop
// devices.
func UsesOf(v store.Volume, loops []loopdev.LoopDevice) ([]Use, error) {
	entries, err := mounts.ReadMounts(proc.OwnMounts, needles(v, loops)...)
	if err != nil {
		return nil, err
	}

	var found []Use
	for _, e := range entries {
		if v.Type == store.TypeDirectory {
			if ShowsDirectory(e, v.ID) {
				found = append(found, Use{Point: e.Point})
			}
			continue
		}

		for i := range loops {
			l := &loops[i]
			if l.Holds(e) {
				found = append(found, Use{Point: e.Point, Loop: l})
			} else if l.IsNodeOf(e) {
				found = append(found, Use{Point: e.Point, Loop: l, Node: true})
			}
		}
	}

	return found, nil
}

// needles returns strings with which the mount table is searched. Every line about the volume
// contains at least one of them.
func needles(v store.Volume, loops []loopdev.LoopDevice) []string {
	if v.Type == store.TypeDirectory {
		return []string{v.ID}
	}
	n := []string{}
	for _, l := range loops {
		n = append(n, "/"+l.Name, " "+l.Devno()+" ")
	}
	return n
}

// ShowsDirectory reports whether a mount shows a directory volume, or a directory in it. Ids are
// random, so the path is sufficient proof in every mount namespace.
func ShowsDirectory(e mounts.MountEntry, id string) bool {
	data := path.Join("/", store.DirVolumes, id, store.DataDir)
	return strings.HasSuffix(strings.TrimSuffix(e.Root, "//deleted"), data) || strings.Contains(e.Root, data+"/")
}

// CheckUnused returns an error if a volume is in use in any way, so that it must not be deleted.
func CheckUnused(s *store.Store, v store.Volume) error {
	dir := s.Path(store.DirVolumes, v.ID)
	inside, err := mounts.ReadMounts(proc.OwnMounts, v.ID)
	if err != nil {
		return err
	}

	for _, e := range inside {
		if e.Point == dir || strings.HasPrefix(e.Point, dir+"/") {
			return csierr.Preconditionf("volume %q cannot be deleted: something is mounted inside it, at %q", v.ID, e.Point)
		}
	}

	if v.Type == store.TypeImage {
		loops, err := loopdev.LoopsOf(v.ID, s.DataPath(v))
		if err != nil {
			return err
		}
		for _, l := range loops {
			return csierr.Preconditionf("volume %q is in use and cannot be deleted: it is attached to %s%s", v.ID, l.Path(), loopdev.WhoMounts(l))
		}
		return nil
	}

	for _, e := range inside {
		if ShowsDirectory(e, v.ID) {
			return csierr.Preconditionf("volume %q is in use and cannot be deleted: it is mounted at %q", v.ID, e.Point)
		}
	}

	var elsewhere error
	err = mounts.OtherNamespaces([]string{v.ID}, func(pid int, e mounts.MountEntry) {
		if elsewhere == nil && ShowsDirectory(e, v.ID) {
			elsewhere = csierr.Preconditionf("volume %q is in use and cannot be deleted: process %d, in another mount namespace, sees it mounted at %q",
				v.ID, pid, e.Point)
		}
	})
	if err != nil {
		return err
	}

	return elsewhere
}

// LookAt examines the topmost mount at a path. The mount belongs to the volume only if it shows the
// same directory (the same device and inode numbers) or the same loop device.
func LookAt(s *store.Store, v store.Volume, loops []loopdev.LoopDevice, p string) (Place, error) {
	st, err := mounts.StatPath(p)
	if errors.Is(err, unix.EIO) {
		return lookDead(loops, p, err)
	}
	if err != nil || !st.MountRoot {
		return Place{PathState: st}, err
	}

	found := Place{PathState: st, Kind: KindForeign}
	if v.Type == store.TypeDirectory {
		data, err := mounts.StatPath(s.DataPath(v))
		switch {
		case err != nil:
			return found, err
		case !data.Exists || data.MountRoot:
			return found, csierr.Preconditionf("the directory of volume %q is missing, or something is mounted on %q", v.ID, s.DataPath(v))
		case data.Dev == st.Dev && data.Ino == st.Ino:
			found.Kind = KindOurs
		}

		return found, nil
	}

	for i := range loops {
		if st.IsBlock() && st.Rdev == loops[i].Rdev {
			found.Kind, found.Loop = KindNode, &loops[i]
			return found, nil
		}
	}

	if v.Block && st.IsBlock() {
		found.Stray = strayNode(s, st.Rdev)
		return found, nil
	}

	found.Loop, err = findFilesystem(s, v, loops, st)
	if found.Loop != nil {
		found.Kind = KindOurs
	}

	return found, err
}

// strayNode reports whether a device node that is bind-mounted at a path of a block volume is
// stray. A node is stray if another program has detached its loop device. It then shows no data, or
// the image of another volume. Removing the bind mount of a stray node does no harm.
func strayNode(s *store.Store, rdev uint64) bool {
	if unix.Major(rdev) != loopdev.LoopMajor {
		return false
	}
	backing := loopdev.LoopBacking(int(unix.Minor(rdev)))
	return backing == "" || strings.HasPrefix(backing, s.Path(store.DirVolumes)+"/")
}

// findFilesystem returns the loop device whose filesystem is mounted at the examined path, with its
// root directory. It returns nil if there is no such device.
func findFilesystem(s *store.Store, v store.Volume, loops []loopdev.LoopDevice, st mounts.PathState) (*loopdev.LoopDevice, error) {
	if v.FSType == "btrfs" && len(loops) > 0 {
		// The device number of a btrfs file identifies no device. Only the mount table shows the
		// source.
		e, err := mounts.MountedAt(st.MountID)
		if err != nil {
			return nil, err
		}

		for i := range loops {
			if loops[i].Holds(e) {
				return &loops[i], nil
			}
		}

		return nil, nil
	}

	for i := range loops {
		if st.Dev != loops[i].Rdev {
			continue
		}

		file := s.DataPath(v)
		if loops[i].Stale {
			file = loops[i].Path()
		}

		root, err := imagefs.RootInode(v.FSType, file)
		if err != nil || root != st.Ino {
			return nil, err
		}

		return &loops[i], nil
	}

	return nil, nil
}

// CheckPath returns a caller's path in the form that the mount table shows: all links before its
// last element are resolved. The path must be absolute and clean, and must not lead into the state
// directory.
func CheckPath(s *store.Store, what, p string) (string, error) {
	switch {
	case p == "":
		return "", csierr.Invalidf("the %s is empty", what)
	case !filepath.IsAbs(p) || strings.ContainsRune(p, 0) || filepath.Clean(p) != strings.TrimSuffix(p, "/"):
		return "", csierr.Invalidf("the %s %q is not an absolute path without . and ..", what, p)
	}

	p = filepath.Clean(p)
	if dir, err := filepath.EvalSymlinks(filepath.Dir(p)); err == nil {
		p = filepath.Join(dir, filepath.Base(p))
	}

	if p == s.Root || strings.HasPrefix(p, s.Root+"/") {
		return "", csierr.Invalidf("the %s %q lies in the driver's state directory", what, p)
	}

	return p, nil
}
