package localdriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/agent/localdriver/store"
	"github.com/volagent/volagent/agent/localdriver/usage"
	"github.com/volagent/volagent/volmgr/treecopy"
)

// These are the requests of ioctl_fsfreeze(2), with the numbers of most architectures.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// If a process freezes a filesystem and dies, the filesystem stays frozen and its writers hang. The
// driver therefore creates the file frozen/VOLUME-ID on disk before it freezes a filesystem, and
// removes the file after it has thawed the filesystem. At the next start, before it serves calls,
// the driver thaws every volume that has such a file.

// freezer freezes and thaws the mounted filesystem of a volume.
type freezer struct {
	s    *store.Store
	v    store.Volume
	at   *os.File      // the root directory of one of the filesystem's mounts
	most time.Duration // the time limit of the copy; see freezeMost

	mu     sync.Mutex
	late   *time.Timer // a timer that thaws a filesystem that has been frozen for too long
	thawed bool
}

// newFreezer opens a mount of the filesystem and writes out its cached data, so that the filesystem
// is frozen only briefly later.
func newFreezer(s *store.Store, v store.Volume, points []string, loops []loopdev.LoopDevice, most time.Duration) (*freezer, error) {
	at, err := openMount(v, points, loops)
	if err != nil {
		return nil, err
	}
	if err := unix.Syncfs(int(at.Fd())); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot write out volume %q: %w", v.ID, err), at.Close())
	}
	return &freezer{s: s, v: v, at: at, most: most}, nil
}

// openMount opens the filesystem on one of the devices. It uses the first path that still shows
// this filesystem, because another filesystem or a directory may have replaced the mount at a path.
// Freezing the wrong filesystem could stop the whole host.
func openMount(v store.Volume, points []string, loops []loopdev.LoopDevice) (*os.File, error) {
	err := csierr.Preconditionf("volume %q is mounted, but something else is where it is mounted, at %s", v.ID, strings.Join(points, ", "))
	for _, p := range points {
		at, e := os.OpenFile(p, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if e != nil {
			err = fmt.Errorf("cannot open the mount of volume %q: %w", v.ID, e)
			continue
		}

		st, e := treecopy.StatOpen(at)
		if e == nil {
			var m mounts.MountEntry
			m, e = mounts.MountedAt(st.Mnt_id)
			if e == nil && slices.ContainsFunc(loops, func(l loopdev.LoopDevice) bool { return l.Holds(m) }) {
				return at, nil
			}
		}

		_ = at.Close() // closing a directory cannot lose data
	}

	return nil, err
}

// freeze stops all writers until thaw is called. It returns an error if another program has already
// frozen the filesystem, because the other program could thaw the filesystem at any moment.
func (f *freezer) freeze() error {
	if err := f.s.NoteFreeze(f.v.ID); err != nil {
		return fmt.Errorf("cannot freeze volume %q: %w", f.v.ID, err)
	}

	f.s.Reach("noted")
	err := unix.IoctlSetInt(int(f.at.Fd()), fiFreeze, 0)
	if err == nil {
		f.late = time.AfterFunc(thawAfter*f.most, f.giveUp)
	}
	f.s.Reach("frozen")
	if err == nil {
		return nil
	}

	if errors.Is(err, unix.EBUSY) {
		err = csierr.Preconditionf("the filesystem of volume %q was frozen by another program (fsfreeze?); thaw it first", f.v.ID)
	} else {
		err = fmt.Errorf("cannot freeze the filesystem of volume %q: %w", f.v.ID, err)
	}

	return errors.Join(err, f.s.UnnoteFreeze(f.v.ID))
}

// thaw lets the writers continue. It returns an error if the filesystem was thawed before, because
// the copied data may then be inconsistent.
func (f *freezer) thaw() error {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.late.Stop()
	f.thawed = true
	was, err := thawAt(f.at)
	if err != nil {
		return fmt.Errorf("cannot thaw volume %q, whose writers hang now; run fsfreeze -u on its mount: %w", f.v.ID, err)
	}

	f.s.Reach("thawed")
	if err := f.s.UnnoteFreeze(f.v.ID); err != nil {
		return err
	}
	if !was {
		return csierr.Preconditionf("the filesystem of volume %q was thawed before it was copied: by another program, or because it was frozen for more than %s; try again",
			f.v.ID, thawAfter*f.most)
	}

	return nil
}

// giveUp thaws the filesystem early, because it has been frozen for too long. A later call of thaw
// returns an error.
func (f *freezer) giveUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.thawed {
		return
	}
	if _, err := thawAt(f.at); err != nil {
		f.s.Log.Error("cannot thaw a volume that has been frozen for too long", "volume_id", f.v.ID, "error", err)
	}
}

func (f *freezer) close() { _ = f.at.Close() } // closing a directory cannot lose data

// thawAt thaws a filesystem and reports whether it was frozen.
func thawAt(dir *os.File) (was bool, err error) {
	err = unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0)
	if errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	return err == nil, err
}

// thawLeftovers thaws the volumes that a killed driver left frozen. If a thaw fails, the next start
// tries again.
func (d *driver) thawLeftovers(ctx context.Context) {
	for _, e := range d.store.Frozen() {
		v, err := d.store.Get(e)
		if err == nil {
			err = d.thawVolume(ctx, v)
		}
		if errors.Is(err, store.ErrNoVolume) {
			err = nil // a deleted volume was not mounted, so it cannot be frozen
		}
		if err == nil {
			err = d.store.UnnoteFreeze(e)
		}
		if err != nil {
			d.log.Error("cannot thaw a volume that an earlier run may have left frozen; if its writers hang, run fsfreeze -u on its mount",
				"volume_id", e, "error", err)
			continue
		}

		d.log.Info("made sure that a volume is not frozen: an earlier run was killed while it took a snapshot", "volume_id", e)
	}
}

// thawVolume thaws a volume through any of its mounts. A filesystem that is unmounted while it is
// frozen stays frozen. So if the filesystem has no mount, thawVolume makes a temporary private
// mount.
func (d *driver) thawVolume(ctx context.Context, v store.Volume) error {
	loops, err := loopdev.LoopsOf(v.ID, d.store.DataPath(v))
	if err != nil || len(loops) == 0 {
		return err // without a device there is no mount, so no filesystem can be frozen
	}

	uses, err := usage.UsesOf(v, loops)
	if err != nil {
		return err
	}

	var points []string
	for _, u := range uses {
		if !u.Node {
			points = append(points, u.Point)
		}
	}

	if at, err := openMount(v, points, loops); err == nil {
		_, err = thawAt(at)
		return errors.Join(err, at.Close())
	}

	return mounts.WithPrivateMount(loops[0].Path(), v.FSType, nil, func(root *os.File) error {
		_, err := thawAt(root)
		return errors.Join(ctx.Err(), err)
	})
}
