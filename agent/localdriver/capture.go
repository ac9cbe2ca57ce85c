package localdriver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/proc"

	"google.golang.org/grpc/codes"
)

const (
	// shortCopy is the most that is copied, in bytes, while a filesystem is frozen, where the data
	// cannot be shared; and freezeMost is for how long. Writers hang meanwhile.
	shortCopy  = 128 * mib
	freezeMost = 5 * time.Second
	// thawAfter times that long a filesystem is frozen at most, whatever is in the way: another
	// member of a group that cannot be frozen, or a slow disk. The copy fails then.
	thawAfter = 3
)

// captured is one volume whose data is to be copied as it is at one moment.
type captured struct {
	v      volume
	unlock func() // of the volume
	end    func() // of reading it, once the lock is given back

	// Of an image in use only:
	loops  []loopDevice
	points []string // mounts of its filesystem; none when it is used as a block device
	fs     *freezer // with a mount
	copy   *imageCopy
}

func (c *captured) live() bool { return len(c.loops) > 0 }

// capture is a set of volumes held for being copied. Those in use are copied at one and the same
// moment; nobody writes to the others until their copies are done.
type capture struct {
	d    *driver
	vols []*captured
}

// hold locks volumes, in the order of their ids, and refuses those that cannot be copied now.
// perFile lets a directory be copied while others may write to it.
func (d *driver) hold(ids []string, perFile bool) (*capture, error) {
	c := &capture{d: d}
	for _, id := range slices.Sorted(slices.Values(ids)) {
		unlock, err := d.lockToRelease(id)
		if err != nil {
			c.release()
			return nil, err
		}
		one := &captured{unlock: unlock, end: func() {}}
		c.vols = append(c.vols, one)
		if one.v, err = d.volume(id); err == nil {
			err = d.classify(one, perFile)
		}
		if err != nil {
			c.release()
			return nil, err
		}
	}
	return c, nil
}

// release lets go of all that is still held. It may be called again.
func (c *capture) release() {
	for _, one := range c.vols {
		if one.unlock != nil {
			one.unlock()
			one.unlock = nil
		}
		one.end()
		if one.fs != nil {
			one.fs.close()
			one.fs = nil
		}
	}
}

// volumes are those held, in the order of their ids.
func (c *capture) volumes() []volume {
	all := make([]volume, len(c.vols))
	for i, one := range c.vols {
		all[i] = one.v
	}
	return all
}

// classify finds out how a volume is used.
func (d *driver) classify(one *captured, perFile bool) error {
	v := one.v
	if v.Type == typeDirectory {
		if perFile {
			return nil
		}
		return d.refuseWriters(v)
	}
	loops, err := loopsOf(v.ID, d.store.dataPath(v))
	if err != nil || len(loops) == 0 {
		return err
	}
	for _, l := range loops {
		if l.stale {
			return preconditionf("the image of volume %q was deleted or replaced while it was attached to %s, so it cannot be copied as it is used; detach the volume first", v.ID, l.path())
		}
	}
	one.loops = loops
	uses, err := d.uses(v, loops)
	if err != nil {
		return err
	}
	for _, u := range uses {
		if !u.node {
			one.points = append(one.points, u.point)
		}
	}
	return nil
}

// refuseWriters refuses a directory volume that is mounted writable anywhere: its files cannot be
// copied all at one moment.
func (d *driver) refuseWriters(v volume) error {
	refuse := func(where string) error {
		return preconditionf("volume %q is a directory and mounted writable at %s, so it cannot be copied as it is at one moment; "+
			"detach it first, or take a snapshot with the parameter %s: %s, in which only each file by itself is consistent",
			v.ID, where, paramConsistency, consistencyPerFile)
	}
	entries, err := readMounts(proc.OwnMounts, v.ID)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if showsDirectory(e, v.ID) && !e.readOnly {
			return refuse(fmt.Sprintf("%q", e.point))
		}
	}
	var elsewhere error
	err = otherNamespaces([]string{v.ID}, func(pid int, e mountEntry) {
		if elsewhere == nil && showsDirectory(e, v.ID) && !e.readOnly {
			elsewhere = refuse(fmt.Sprintf("%q, in the mount namespace of process %d", e.point, pid))
		}
	})
	return errors.Join(err, elsewhere)
}

// take copies the data of each volume to dirs, which are in the order of volumes(), and waits for
// the disk. Afterwards nothing is held any more.
func (c *capture) take(ctx context.Context, dirs []string, p *progress) error {
	defer c.release()
	if err := c.takeLive(ctx, dirs, p); err != nil {
		return err
	}
	for _, one := range c.vols {
		if !one.live() {
			one.end = c.d.readers.begin(one.v.ID, p)
		}
		one.unlock()
		one.unlock = nil
	}
	c.d.store.reach("copying")
	for i, one := range c.vols {
		if one.live() {
			continue
		}
		if err := c.d.copyContent(ctx, one.v.Type, c.d.store.dataPath(one.v), one.v.Capacity, dirs[i], p); err != nil {
			return fmt.Errorf("cannot copy volume %q: %w", one.v.ID, err)
		}
		one.end()
	}
	return nil
}

// copyContent copies what nobody writes to. An image must have the size that is on record.
func (d *driver) copyContent(ctx context.Context, typ, src string, size int64, dir string, p *progress) error {
	dst := filepath.Join(dir, contentName(typ))
	if typ == typeImage {
		return copyImage(ctx, src, dst, size, p)
	}
	return copyTree(ctx, src, dst, p)
}

// takeLive copies the volumes in use.
//
//  1. Everything is opened, and cached data is written out, so that what follows is short.
//  2. All filesystems are frozen.
//  3. All images are cloned; the small ones are copied where that is not possible.
//  4. All filesystems are thawed, whatever happened.
//  5. The copies are synced.
func (c *capture) takeLive(ctx context.Context, dirs []string, p *progress) (err error) {
	defer func() {
		for _, one := range c.vols {
			if one.copy != nil && err != nil {
				one.copy.abandon()
			}
		}
	}()
	for i, one := range c.vols {
		if !one.live() {
			continue
		}
		if len(one.points) > 0 {
			one.fs, err = c.d.store.newFreezer(one.v, one.points, one.loops)
		} else {
			err = one.flush()
		}
		if err != nil {
			return err
		}
		if one.copy, err = openImageCopy(c.d.store.dataPath(one.v), filepath.Join(dirs[i], imageFile), one.v.Capacity); err != nil {
			return err
		}
	}
	if err = c.frozen(func() error { return c.cut(ctx, p) }); err != nil {
		return err
	}
	for _, one := range c.vols {
		if one.copy == nil {
			continue
		}
		err = errors.Join(err, one.copy.finish())
		one.copy = nil
	}
	return err
}

// frozen runs do while all filesystems in use are frozen.
func (c *capture) frozen(do func() error) (err error) {
	for _, one := range c.vols {
		if one.fs == nil {
			continue
		}
		if err := one.fs.freeze(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, one.fs.thaw()) }()
	}
	return do()
}

// cut copies all images in use, in so short a time that their writers can wait.
func (c *capture) cut(ctx context.Context, p *progress) error {
	ctx, cancel := context.WithTimeout(ctx, c.d.store.freezeMost)
	defer cancel()
	for _, one := range c.vols {
		if !one.live() {
			continue
		}
		if one.fs == nil {
			if err := one.flush(); err != nil { // what came since the first time
				return err
			}
		}
		err := reflink(one.copy.src, one.copy.dst)
		if errors.Is(err, errNoReflink) {
			err = one.cutPlain(ctx, p)
		}
		if err != nil {
			return fmt.Errorf("cannot copy volume %q: %w", one.v.ID, err)
		}
		c.d.store.reach("cut")
	}
	return nil
}

// flush writes out what is cached for a volume that is used as a block device.
func (c *captured) flush() error {
	for _, l := range c.loops {
		if l.readOnly {
			continue
		}
		if err := flushLoop(l); err != nil {
			return err
		}
	}
	return nil
}

// cutPlain copies an image in use whose data cannot be shared, if it is small and frozen.
func (c *captured) cutPlain(ctx context.Context, p *progress) error {
	const advice = "detach it first, or put the driver's state directory on xfs or btrfs, which can clone a file at once"
	if c.fs == nil {
		return preconditionf("it is attached as a block device, and this filesystem cannot clone a file at one moment; %s", advice)
	}
	_, bytes, err := c.copy.allocated()
	if err != nil {
		return err
	}
	if bytes > shortCopy {
		return preconditionf("it is mounted and holds %s; this filesystem cannot clone a file, and its writers would hang while so much is copied (at most %s are); %s",
			humanBytes(bytes), humanBytes(shortCopy), advice)
	}
	err = c.copy.plain(ctx, p)
	if errors.Is(err, context.DeadlineExceeded) {
		return preconditionf("it is mounted, and its data could not be copied within %s, for which its writers were made to wait; %s", freezeMost, advice)
	}
	return err
}

// lockToRelease takes a volume or snapshot for one call that may run while its data is being
// copied: it takes away mounts, or copies too.
func (d *driver) lockToRelease(id string) (func(), error) {
	unlock, ok := d.busy.try(id)
	if !ok {
		return nil, codedf(codes.Aborted, "another operation on %q is running", id)
	}
	return unlock, nil
}

// lock takes a volume or snapshot for one call that needs it for itself.
func (d *driver) lock(id string) (func(), error) {
	unlock, err := d.lockToRelease(id)
	if err != nil {
		return nil, err
	}
	if err := d.readers.check(id); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}
