package localdriver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// A directory volume can have a quota, the mutable parameter "quota". It is a project quota of the
// filesystem that holds the volumes. Everything in the volume belongs to one project, and the
// filesystem limits the space of that project. Every start and every staging sets the quota from
// volume.json again, so a crash during the change does no harm.
//
//  1. volume.json records the quota. If the volume has no project, it also records a new one and the
//     note "assigning".
//  2. The limit is set.
//  3. The volume's files are assigned to the project, and the note is removed.
//
// A volume keeps its project when its quota is removed, so the next quota needs no walk over the
// files.
const (
	paramQuota = "quota"
	noQuota    = "none"
)

// projects is the part of a filesystem's project quotas that the driver uses.
type projects interface {
	// check returns the reason why no quota would be in force, or nil.
	check() error
	// assign makes a directory and everything in it, now and later, belong to a project.
	assign(ctx context.Context, dir string, project uint32) error
	// limit sets the maximum number of bytes of a project; 0 means no limit.
	limit(project uint32, bytes int64) error
	// usage returns the bytes that a project uses, and its limit.
	usage(project uint32) (used, limit int64, err error)
}

// mutable are the parsed mutable parameters.
type mutable struct {
	given bool
	quota int64 // bytes, 0 for none
}

func parseMutable(m map[string]string) (mutable, error) {
	var p mutable
	for _, k := range sortedKeys(m) {
		if k != paramQuota {
			return p, csierr.Invalidf("unknown mutable parameter %q; the local driver knows %s", k, paramQuota)
		}

		p.given = true
		if m[k] == noQuota {
			continue
		}

		var err error
		if p.quota, err = parseQuota(m[k]); err != nil {
			return p, csierr.Invalidf("mutable parameter %q: %q is not %s, a number of bytes, or a size such as 10GiB", k, m[k], noQuota)
		}
	}

	return p, nil
}

// quotaUnits are the units that volume files use for sizes.
var quotaUnits = []struct {
	name  string
	bytes int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"PiB", 1 << 50},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"PB", 1e15}, {"B", 1},
}

// parseQuota parses a whole number with or without a unit and rounds it up to 1 KiB, the kernel's
// unit for limits.
func parseQuota(text string) (int64, error) {
	number, unit := text, int64(1)
	for _, u := range quotaUnits {
		if n, ok := strings.CutSuffix(text, u.name); ok {
			number, unit = strings.TrimRight(n, " "), u.bytes
			break
		}
	}

	n, err := strconv.ParseUint(number, 10, 63)
	if err != nil {
		return 0, err
	}
	if n == 0 || int64(n) > (math.MaxInt64-1023)/unit {
		return 0, errors.New("out of range")
	}

	return roundQuota(int64(n) * unit), nil
}

// roundQuota rounds bytes up to 1 KiB. A number that is too large for rounding stays unchanged.
func roundQuota(bytes int64) int64 {
	if bytes > math.MaxInt64-1023 {
		return bytes
	}
	return (bytes + 1023) / 1024 * 1024
}

// checkQuota refuses a quota that the volume cannot have.
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

	want, err := parseMutable(req.GetMutableParameters())
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

	if want.given {
		err = d.setQuota(ctx, v, want.quota)
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

// enforce sets the recorded quota of a volume if it is not in force. The caller holds the volume's
// lock.
func (d *driver) enforce(ctx context.Context, v store.Volume) error {
	if d.quotaTrouble(v) == nil {
		return nil
	}

	fail := func(err error) error { return fmt.Errorf("cannot set the quota of volume %q: %w", v.ID, err) }
	if err := d.projects.check(); err != nil {
		return fail(err)
	}

	if v.Project == 0 { // it was created with a quota but got no project
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

// quotaTrouble returns the reason why the quota of a volume is not in force, or nil.
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

// enforceAll sets the quotas of all volumes. This is necessary after a crash, or when the state
// directory has moved to another filesystem.
func (d *driver) enforceAll(ctx context.Context) {
	for _, v := range d.store.List() {
		if v.Project == 0 && v.Quota == 0 || ctx.Err() != nil {
			continue
		}

		unlock, ok := d.locks.Try(v.ID)
		if !ok {
			continue // the call that holds the lock may be a staging, which sets the quota too
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

// fillDirectory makes the data of a directory volume, with the quota in force.
func (d *driver) fillDirectory(ctx context.Context, dir string, v store.Volume) error {
	if err := store.MakeDirectory(dir); err != nil {
		return err
	}
	return d.countDirectory(ctx, dir, v)
}

// countDirectory applies the quota of a new volume to its content.
func (d *driver) countDirectory(ctx context.Context, dir string, v store.Volume) error {
	if v.Project == 0 {
		return nil
	}
	if err := d.projects.limit(v.Project, v.Quota); err != nil {
		return err
	}
	return d.projects.assign(ctx, store.DataIn(dir), v.Project)
}

// newProject chooses a project id that no volume has. The range avoids small ids, which people use,
// and the ids of container runtimes.
func (d *driver) newProject() uint32 {
	all := d.store.List()
	for {
		p := uint32(1<<30 + rand.IntN(1<<30))
		if !slices.ContainsFunc(all, func(v store.Volume) bool { return v.Project == p }) {
			return p
		}
	}
}

// quotaStats replaces the disk's numbers by those of a directory volume's quota.
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
