package localdriver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/jobs"
	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/agent/localdriver/request"
	"github.com/volagent/volagent/agent/localdriver/store"
	"github.com/volagent/volagent/agent/localdriver/tree"
	"github.com/volagent/volagent/agent/localdriver/usage"
	"github.com/volagent/volagent/volmgr/proc"
	"github.com/volagent/volagent/volmgr/treecopy"
)

const (
	// While a filesystem is frozen, its writers hang. So if the image of the filesystem cannot be
	// cloned, the driver copies the image only if it has at most shortCopy bytes of data. The
	// constant freezeMost is the time limit for all copies that are made during one freeze.
	shortCopy  = 128 << 20
	freezeMost = 5 * time.Second
	// No filesystem stays frozen for longer than thawAfter times freezeMost, even if the disk is
	// slow or another volume of the group cannot be frozen. A copy that has not finished by then
	// fails.
	thawAfter = 3
)

// captured is one volume of a capture.
type captured struct {
	v      store.Volume
	unlock func() // releases the volume's lock
	end    func() // ends the registration of the copy in jobs.Locks; called after unlock

	// These fields are set only for an image in use.
	loops []loopdev.LoopDevice
	// the mounts of the image's filesystem; empty if the image is used as a block device
	points []string
	fs     *freezer // nil if the image has no mount
	copy   *tree.ImageCopy
}

func (c *captured) live() bool { return len(c.loops) > 0 }

// capture is a set of volumes that are locked for a copy. All volumes that are in use are copied as
// they are at the same moment. A volume that is not in use is copied later, and no process can
// begin to write to it until its copy is complete.
type capture struct {
	d    *driver
	vols []*captured
}

// hold locks volumes, in the order of their ids. It returns an error if one of the volumes cannot
// be copied now. If perFile is true, a directory may be copied while processes write to it.
func (d *driver) hold(ids []string, perFile bool) (*capture, error) {
	c := &capture{d: d}
	for _, id := range slices.Sorted(slices.Values(ids)) {
		unlock, err := d.locks.LockToRelease(id)
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

// release releases all locks and files of the capture. A repeated call has no effect.
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

// volumes returns the volumes of the capture, in the order of their ids.
func (c *capture) volumes() []store.Volume {
	all := make([]store.Volume, len(c.vols))
	for i, one := range c.vols {
		all[i] = one.v
	}
	return all
}

// classify checks whether a volume can be copied now. For an image in use, it also finds the
// devices and mounts.
func (d *driver) classify(one *captured, perFile bool) error {
	v := one.v
	if v.Type == store.TypeDirectory {
		if perFile {
			return nil
		}
		return d.refuseWriters(v)
	}

	loops, err := loopdev.LoopsOf(v.ID, d.store.DataPath(v))
	if err != nil || len(loops) == 0 {
		return err
	}

	for _, l := range loops {
		if l.Stale {
			return csierr.Preconditionf("the image of volume %q was deleted or replaced while it was attached to %s, so it cannot be copied as it is used; detach the volume first", v.ID, l.Path())
		}
	}

	one.loops = loops
	uses, err := usage.UsesOf(v, loops)
	if err != nil {
		return err
	}

	for _, u := range uses {
		if !u.Node {
			one.points = append(one.points, u.Point)
		}
	}

	return nil
}

// refuseWriters returns an error if a directory volume is mounted writable anywhere. While
// processes write to the directory, the driver cannot copy all files as they are at one moment.
func (d *driver) refuseWriters(v store.Volume) error {
	refuse := func(where string) error {
		return csierr.Preconditionf("volume %q is a directory and mounted writable at %s, so it cannot be copied as it is at one moment; "+
			"detach it first, or take a snapshot with the parameter %s: %s, in which only each file by itself is consistent",
			v.ID, where, request.ParamConsistency, request.ConsistencyPerFile)
	}
	entries, err := mounts.ReadMounts(proc.OwnMounts, v.ID)
	if err != nil {
		return err
	}

	for _, e := range entries {
		if usage.ShowsDirectory(e, v.ID) && !e.ReadOnly {
			return refuse(fmt.Sprintf("%q", e.Point))
		}
	}

	var elsewhere error
	err = mounts.OtherNamespaces([]string{v.ID}, func(pid int, e mounts.MountEntry) {
		if elsewhere == nil && usage.ShowsDirectory(e, v.ID) && !e.ReadOnly {
			elsewhere = refuse(fmt.Sprintf("%q, in the mount namespace of process %d", e.Point, pid))
		}
	})

	return errors.Join(err, elsewhere)
}

// take copies the data of each volume to a directory, and waits until the copies are on disk. The
// volume at index i of volumes() is copied to dirs[i]. At the end, take releases all volumes.
func (c *capture) take(ctx context.Context, dirs []string, p *jobs.Progress) error {
	defer c.release()

	if err := c.takeLive(ctx, dirs, p); err != nil {
		return err
	}

	for _, one := range c.vols {
		if !one.live() {
			one.end = c.d.locks.BeginCopy(one.v.ID, p)
		}
		one.unlock()
		one.unlock = nil
	}

	c.d.store.Reach("copying")
	for i, one := range c.vols {
		if one.live() {
			continue
		}
		if err := c.d.copyContent(ctx, one.v.Type, c.d.store.DataPath(one.v), one.v.Capacity, dirs[i], p); err != nil {
			return fmt.Errorf("cannot copy volume %q: %w", one.v.ID, err)
		}
		one.end()
	}

	return nil
}

// copyContent copies a volume or snapshot that has no writers. If it is an image, it must have the
// recorded size.
func (d *driver) copyContent(ctx context.Context, typ, src string, size int64, dir string, p *jobs.Progress) error {
	dst := filepath.Join(dir, store.ContentName(typ))
	if typ == store.TypeImage {
		return tree.CopyImage(ctx, src, dst, size, p)
	}
	return tree.CopyTree(ctx, src, dst, p)
}

// takeLive copies the volumes in use.
//
//  1. Open all images and write out cached data, so that the next steps are short.
//  2. Freeze all filesystems.
//  3. Clone all images. Copy the small ones if cloning is not possible.
//  4. Thaw all filesystems, even after an error.
//  5. Sync the copies.
func (c *capture) takeLive(ctx context.Context, dirs []string, p *jobs.Progress) (err error) {
	defer func() {
		for _, one := range c.vols {
			if one.copy != nil && err != nil {
				one.copy.Abandon()
			}
		}
	}()

	for i, one := range c.vols {
		if !one.live() {
			continue
		}

		if len(one.points) > 0 {
			one.fs, err = newFreezer(c.d.store, one.v, one.points, one.loops, c.d.opts.freeze)
		} else {
			err = one.flush()
		}
		if err != nil {
			return err
		}
		if one.copy, err = tree.OpenImageCopy(c.d.store.DataPath(one.v), filepath.Join(dirs[i], store.ImageFile), one.v.Capacity); err != nil {
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
		err = errors.Join(err, one.copy.Finish())
		one.copy = nil
	}

	return err
}

// frozen runs the function do while the filesystems of all volumes in use are frozen.
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

// cut copies all images in use. It takes at most the time freezeMost, so that their writers hang
// only briefly.
func (c *capture) cut(ctx context.Context, p *jobs.Progress) error {
	ctx, cancel := context.WithTimeout(ctx, c.d.opts.freeze)
	defer cancel()

	for _, one := range c.vols {
		if !one.live() {
			continue
		}

		if one.fs == nil {
			// Flush again, because writers may have added data since the first flush.
			if err := one.flush(); err != nil {
				return err
			}
		}

		err := treecopy.Reflink(one.copy.Src, one.copy.Dst)
		if errors.Is(err, treecopy.ErrNoReflink) {
			err = one.cutPlain(ctx, p)
		}
		if err != nil {
			return fmt.Errorf("cannot copy volume %q: %w", one.v.ID, err)
		}

		c.d.store.Reach("cut")
	}

	return nil
}

// flush writes out the cached data of a volume that is used as a block device.
func (c *captured) flush() error {
	for _, l := range c.loops {
		if l.ReadOnly {
			continue
		}
		if err := loopdev.FlushLoop(l); err != nil {
			return err
		}
	}
	return nil
}

// cutPlain copies the data of an image in use, if the filesystem cannot clone files. It returns an
// error if the image is too large or is not frozen.
func (c *captured) cutPlain(ctx context.Context, p *jobs.Progress) error {
	const advice = "detach it first, or put the driver's state directory on xfs or btrfs, which can clone a file at once"
	if c.fs == nil {
		return csierr.Preconditionf("it is attached as a block device, and this filesystem cannot clone a file at one moment; %s", advice)
	}

	_, bytes, err := c.copy.Allocated()
	if err != nil {
		return err
	}
	if bytes > shortCopy {
		return csierr.Preconditionf("it is mounted and holds %s; this filesystem cannot clone a file, and its writers would hang while so much is copied (at most %s are); %s",
			jobs.HumanBytes(bytes), jobs.HumanBytes(shortCopy), advice)
	}

	err = c.copy.Plain(ctx, p)
	if errors.Is(err, context.DeadlineExceeded) {
		return csierr.Preconditionf("it is mounted, and its data could not be copied within %s, for which its writers were made to wait; %s", freezeMost, advice)
	}

	return err
}
