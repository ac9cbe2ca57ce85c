package localdriver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/request"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// projects contains the operations on a filesystem's project quotas that the driver needs.
type projects interface {
	// check returns the reason why the filesystem would not enforce a quota, or nil.
	check() error
	// assign makes a directory belong to a project, with everything in it. Files that are made in
	// the directory later belong to the project, too.
	assign(ctx context.Context, dir string, project uint32) error
	// limit sets the maximum number of bytes of a project; 0 means no limit.
	limit(project uint32, bytes int64) error
	// usage returns the number of bytes that a project uses, and its limit.
	usage(project uint32) (used, limit int64, err error)
}

// checkQuota returns an error if the volume cannot have the given quota.
func (d *driver) checkQuota(v store.Volume, quota int64) error {
	if quota == 0 {
		return nil
	}
	if v.Type != store.TypeDirectory {
		return csierr.Invalidf("a volume of type %q has no quota: its size is its limit", v.Type)
	}
	if err := d.projects.check(); err != nil {
		return csierr.Invalidf("a quota is not possible: %v", err)
	}

	return nil
}

// ControllerModifyVolume sets or removes a volume's quota.
func (d *driver) ControllerModifyVolume(ctx context.Context, req *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	if _, err := d.volume(req.GetVolumeId()); err != nil {
		return nil, err
	}

	want, err := request.ParseMutable(req.GetMutableParameters())
	if err != nil {
		return nil, err
	}

	unlock, err := d.locks.Lock(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer unlock()

	v, err := d.volume(req.GetVolumeId())
	if err != nil {
		return nil, err
	}

	if want.Given {
		err = d.setQuota(ctx, v, want.Quota)
	}
	if err != nil {
		return nil, err
	}

	return &csi.ControllerModifyVolumeResponse{}, nil
}

func (d *driver) setQuota(ctx context.Context, v store.Volume, quota int64) error {
	if err := d.checkQuota(v, quota); err != nil {
		return err
	}

	if v.Quota != quota || v.QuotaIsSize {
		v.Quota, v.QuotaIsSize = quota, false
		if err := d.recordQuota(&v); err != nil {
			return err
		}
		d.log.Info("changed a quota", "volume_id", v.ID, "name", v.Name, "bytes", quota)
	}

	return d.enforce(ctx, v)
}

// recordQuota records the quota of a volume, and chooses a project if the volume has none.
func (d *driver) recordQuota(v *store.Volume) error {
	if v.Project == 0 {
		v.Project, v.Assigning = d.newProject(), true
	}
	return d.store.Rewrite(*v)
}

// enforce sets the recorded quota of a volume in the filesystem, unless it is already set. The
// caller holds the volume's lock.
func (d *driver) enforce(ctx context.Context, v store.Volume) error {
	if d.quotaTrouble(v) == nil {
		return nil
	}

	fail := func(err error) error { return fmt.Errorf("cannot set the quota of volume %q: %w", v.ID, err) }
	if err := d.projects.check(); err != nil {
		return fail(err)
	}

	// A crash came after the volume was created with a quota, but before the volume got a project.
	if v.Project == 0 {
		if err := d.recordQuota(&v); err != nil {
			return err
		}
	}

	if err := d.projects.limit(v.Project, v.Quota); err != nil {
		return fail(err)
	}
	if !v.Assigning {
		return nil
	}
	if err := d.projects.assign(ctx, d.store.DataPath(v), v.Project); err != nil {
		return fail(err)
	}

	v.Assigning = false
	return d.store.Rewrite(v)
}

// quotaTrouble returns the reason why the filesystem does not enforce the quota of a volume, or
// nil.
func (d *driver) quotaTrouble(v store.Volume) error {
	if v.Project == 0 && v.Quota == 0 {
		return nil
	}
	if err := d.projects.check(); err != nil {
		if v.Quota == 0 {
			return nil
		}
		return err
	}
	if v.Project == 0 {
		return errors.New("it is not set yet")
	}

	switch _, limit, err := d.projects.usage(v.Project); {
	case err != nil:
		return err
	case limit != v.Quota:
		return fmt.Errorf("the limit is %d bytes, not %d", limit, v.Quota)
	case v.Assigning:
		return errors.New("not all of the volume counts yet")
	}

	return nil
}

// enforceAll sets the quotas of all volumes again. This is necessary after a crash, or if the state
// directory has moved to another filesystem.
func (d *driver) enforceAll(ctx context.Context) {
	for _, v := range d.store.List() {
		if v.Project == 0 && v.Quota == 0 || ctx.Err() != nil {
			continue
		}

		unlock, ok := d.locks.Try(v.ID)
		if !ok {
			// the call that holds the lock may be staging the volume, which also sets the quota
			continue
		}

		if now, err := d.store.Get(v.ID); err == nil {
			d.warnQuota(now, d.enforce(ctx, now))
		}

		unlock()
	}
}

// warnQuota logs that a quota could not be set. The volume remains usable, and its health reports
// the problem.
func (d *driver) warnQuota(v store.Volume, err error) {
	if err != nil {
		d.log.Warn("a volume's quota is not in force", "volume_id", v.ID, "error", err)
	}
}

// fillDirectory makes the data directory of a directory volume. The quota already applies while the
// directory is filled.
func (d *driver) fillDirectory(ctx context.Context, dir string, v store.Volume) error {
	if err := store.MakeDirectory(dir); err != nil {
		return err
	}
	return d.countDirectory(ctx, dir, v)
}

// countDirectory makes the files of a new volume count towards the volume's quota.
func (d *driver) countDirectory(ctx context.Context, dir string, v store.Volume) error {
	if v.Project == 0 {
		return nil
	}
	if err := d.projects.limit(v.Project, v.Quota); err != nil {
		return err
	}
	return d.projects.assign(ctx, store.DataIn(dir), v.Project)
}

// newProject chooses a project id that no volume has. Its range contains neither small ids, which
// people use, nor the ids that container runtimes use.
func (d *driver) newProject() uint32 {
	all := d.store.List()
	for {
		p := uint32(1<<30 + rand.IntN(1<<30))
		if !slices.ContainsFunc(all, func(v store.Volume) bool { return v.Project == p }) {
			return p
		}
	}
}

// quotaStats replaces the statistics of the filesystem with the statistics of the volume's quota.
func (d *driver) quotaStats(v store.Volume, resp *csi.NodeGetVolumeStatsResponse) {
	if v.Quota == 0 || d.quotaTrouble(v) != nil {
		return
	}

	used, limit, err := d.projects.usage(v.Project)
	if err != nil {
		return
	}

	for _, u := range resp.GetUsage() {
		if u.GetUnit() == csi.VolumeUsage_BYTES {
			u.Total, u.Used, u.Available = limit, used, max(0, min(limit-used, u.GetAvailable()))
		}
	}
}
