package request

import (
	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/imagefs"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// GrowTo chooses the new size in bytes of a volume that must grow. The new size is at least the
// present size.
func GrowTo(v *store.Volume, r *csi.CapacityRange) (int64, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	switch {
	case required < 0 || limit < 0:
		return 0, csierr.Invalidf("the capacity range %d to %d is negative", required, limit)
	case limit > 0 && required > limit:
		return 0, csierr.OutOfRangef("required_bytes %d is more than limit_bytes %d", required, limit)
	case limit > 0 && v.Capacity > limit:
		return 0, csierr.OutOfRangef("volume %q has %d bytes and cannot be shrunk to %d", v.ID, v.Capacity, limit)
	case required <= v.Capacity:
		return v.Capacity, nil
	}

	return SizeToGrow(v, r)
}

// SizeToGrow does the same as SizeFor, for a volume whose existing filesystem must grow. It rounds
// up to a size to which the kernel can resize the filesystem.
func SizeToGrow(v *store.Volume, r *csi.CapacityRange) (int64, error) {
	size, err := SizeFor(v, r)
	if err != nil || !imagefs.TooSmallToGrow(v.FSType, size) {
		return size, err
	}
	least := imagefs.LeastResize(v.FSType)
	if limit := r.GetLimitBytes(); limit > 0 && limit < least {
		return 0, csierr.OutOfRangef("the kernel grows a %s to no less than %d bytes (%d MiB), and limit_bytes is %d", v.FSType, least, least/mebibyte, limit)
	}
	return least, nil
}
