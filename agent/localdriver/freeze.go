package localdriver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The requests of ioctl_fsfreeze(2), as most architectures number them.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// A frozen filesystem stays frozen when the process that did it dies, and its writers hang. So
// frozen/VOLUME-ID is on disk before a filesystem is frozen, and removed when it is thawed; the
// next start thaws whatever it finds there before it serves calls.

// noteFreeze writes down that a volume's filesystem will be frozen.
func (s *store) noteFreeze(id string) error {
	f, err := os.OpenFile(s.path(dirFrozen, id), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close(), syncDir(s.path(dirFrozen)))
}

// unnoteFreeze is not synced: thawing once too often does no harm.
func (s *store) unnoteFreeze(id string) error {
	err := os.Remove(s.path(dirFrozen, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// freezer is a mounted filesystem of a volume that can be frozen.
type freezer struct {
	s  *store
	v  volume
	at *os.File // the root of a mount of it

	mu     sync.Mutex
	late   *time.Timer // thaws what is frozen for too long
	thawed bool
}

// newFreezer opens a mount of the filesystem and writes out what it has cached, so that freezing
// it takes short.
func (s *store) newFreezer(v volume, points []string, loops []loopDevice) (*freezer, error) {
	at, err := openMount(v, points, loops)
	if err != nil {
		return nil, err
	}
	if err := unix.Syncfs(int(at.Fd())); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot write out volume %q: %w", v.ID, err), at.Close())
	}
	return &freezer{s: s, v: v, at: at}, nil
}

// openMount opens the filesystem on one of the devices at the first of the paths that shows it:
// another one may have been mounted there since, or a directory put in the place, and freezing
// that could stop the whole host.
func openMount(v volume, points []string, loops []loopDevice) (*os.File, error) {
	err := preconditionf("volume %q is mounted, but something else is where it is mounted, at %s", v.ID, strings.Join(points, ", "))
	for _, p := range points {
		at, e := os.OpenFile(p, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if e != nil {
			err = fmt.Errorf("cannot open the mount of volume %q: %w", v.ID, e)
			continue
		}
		st, e := statOpen(at)
		if e == nil {
			var m mountEntry
			m, e = mountedAt(st.Mnt_id)
			if e == nil && slices.ContainsFunc(loops, func(l loopDevice) bool { return l.holds(m) }) {
				return at, nil
			}
		}
		_ = at.Close() // a directory
	}
	return nil, err
}

// freeze stops all writers until thaw. A filesystem that somebody else froze is left as it is,
// with an error: it could be thawed at any moment.
func (f *freezer) freeze() error {
	if err := f.s.noteFreeze(f.v.ID); err != nil {
		return fmt.Errorf("cannot freeze volume %q: %w", f.v.ID, err)
	}
	f.s.reach("noted")
	err := unix.IoctlSetInt(int(f.at.Fd()), fiFreeze, 0)
	if err == nil {
		f.late = time.AfterFunc(thawAfter*f.s.freezeMost, f.giveUp)
	}
	f.s.reach("frozen")
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.EBUSY) {
		err = preconditionf("the filesystem of volume %q has been frozen by somebody else (fsfreeze?); thaw it first", f.v.ID)
	} else {
		err = fmt.Errorf("cannot freeze the filesystem of volume %q: %w", f.v.ID, err)
	}
	return errors.Join(err, f.s.unnoteFreeze(f.v.ID))
}

// thaw lets the writers go on. It is an error if they did so before: what was copied is not as it
// was at one moment.
func (f *freezer) thaw() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.late.Stop()
	f.thawed = true
	was, err := thawAt(f.at)
	if err != nil {
		return fmt.Errorf("cannot thaw volume %q, whose writers hang now; run fsfreeze -u on its mount: %w", f.v.ID, err)
	}
	f.s.reach("thawed")
	if err := f.s.unnoteFreeze(f.v.ID); err != nil {
		return err
	}
	if !was {
		return preconditionf("the filesystem of volume %q was thawed before it was copied: by somebody else, or because it was frozen for more than %s; try again",
			f.v.ID, thawAfter*f.s.freezeMost)
	}
	return nil
}

// giveUp thaws early; thaw notices.
func (f *freezer) giveUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.thawed {
		return
	}
	if _, err := thawAt(f.at); err != nil {
		f.s.log.Error("cannot thaw a volume that has been frozen for too long", "volume_id", f.v.ID, "error", err)
	}
}

func (f *freezer) close() { _ = f.at.Close() } // a directory

// thawAt thaws a filesystem and tells whether it was frozen.
func thawAt(dir *os.File) (was bool, err error) {
	err = unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0)
	if errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	return err == nil, err
}

// thawLeftovers thaws what a killed driver left frozen. What cannot be thawed is tried again at
// the next start.
func (d *driver) thawLeftovers(ctx context.Context) {
	for _, e := range d.store.frozen() {
		v, err := d.store.get(e)
		if err == nil {
			err = d.thawVolume(ctx, v)
		}
		if errors.Is(err, errNoVolume) {
			err = nil // it was deleted, so nothing was mounted any more
		}
		if err == nil {
			err = d.store.unnoteFreeze(e)
		}
		if err != nil {
			d.log.Error("cannot thaw a volume that an earlier run may have left frozen; if its writers hang, run fsfreeze -u on its mount",
				"volume_id", e, "error", err)
			continue
		}
		d.log.Info("made sure that a volume is not frozen: an earlier run was killed while it took a snapshot", "volume_id", e)
	}
}

func (s *store) frozen() []string {
	list, err := os.ReadDir(s.path(dirFrozen))
	if err != nil {
		s.log.Error("cannot list a state directory", "error", err)
	}
	var ids []string
	for _, e := range list {
		if validID(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids
}

// thawVolume thaws at any mount of the volume, or, when it was unmounted while frozen, which
// keeps it frozen, at a mount made for the purpose.
func (d *driver) thawVolume(ctx context.Context, v volume) error {
	loops, err := loopsOf(v.ID, d.store.dataPath(v))
	if err != nil || len(loops) == 0 {
		return err // no device: nothing is mounted, nothing can be frozen
	}
	uses, err := d.uses(v, loops)
	if err != nil {
		return err
	}
	var points []string
	for _, u := range uses {
		if !u.node {
			points = append(points, u.point)
		}
	}
	if at, err := openMount(v, points, loops); err == nil {
		_, err = thawAt(at)
		return errors.Join(err, at.Close())
	}
	return withPrivateMount(loops[0].path(), v.FSType, nil, func(root *os.File) error {
		_, err := thawAt(root)
		return errors.Join(ctx.Err(), err)
	})
}
