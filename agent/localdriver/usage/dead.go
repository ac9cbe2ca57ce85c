// Package usage finds the mounts of a volume, and decides whether the mount at a path shows the
// volume.
package usage

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/mounts"
)

// lookDead examines a path for which even statx fails with EIO. The reason may be an xfs that has
// shut down after an error, which answers only statfs. The mount table still identifies such a
// filesystem, so that it can be unmounted.
func lookDead(loops []loopdev.LoopDevice, p string, cause error) (Place, error) {
	e, err := mountOf(p)
	if err != nil || e.Point != p {
		// the path is not a mount point but lies inside a filesystem that has shut down
		return Place{}, errors.Join(cause, err)
	}

	found := Place{PathState: mounts.PathState{Exists: true, MountRoot: true}, Kind: KindForeign, Dead: cause}
	for i := range loops {
		if loops[i].Holds(e) && e.Root == "/" {
			found.Kind, found.Loop = KindOurs, &loops[i]
		}
	}

	return found, nil
}

// mountOf finds the mount that contains a path, without accessing the filesystem of the mount.
func mountOf(p string) (mounts.MountEntry, error) {
	fd, err := unix.Open(p, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return mounts.MountEntry{}, fmt.Errorf("cannot look at %q: %w", p, err)
	}
	// closing cannot lose data, because the descriptor was opened with O_PATH
	defer func() { _ = unix.Close(fd) }()

	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return mounts.MountEntry{}, fmt.Errorf("cannot tell the mount of %q: %w", p, err)
	}

	for line := range strings.Lines(string(info)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(id), 10, 64)
			if err != nil {
				return mounts.MountEntry{}, fmt.Errorf("cannot tell the mount of %q: %w", p, err)
			}
			return mounts.MountedAt(n)
		}
	}

	return mounts.MountEntry{}, fmt.Errorf("cannot tell the mount of %q: the kernel does not say", p)
}
