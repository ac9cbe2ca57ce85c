package request

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/volmgr/bytesize"
)

// The mutable parameter "quota" limits the space of a directory volume. The limit is a project quota
// of the filesystem that contains the volumes: everything in the volume belongs to one project, and
// the filesystem limits the space of the project. The driver sets a quota in these steps:
//
//  1. It records the quota in volume.json. If the volume has no project, it also records a new
//     project and the mark "assigning".
//  2. It sets the limit of the project.
//  3. It assigns the volume's files to the project, and removes the mark.
//
// Every start of the driver and every staging sets the quota from volume.json again, so a crash
// between two steps does no harm. If a quota is removed, the volume keeps its project. So the next
// quota need not assign all files again.
const (
	ParamQuota = "quota"
	NoQuota    = "none"
)

// mutable contains the parsed mutable parameters.
type mutable struct {
	Given bool
	Quota int64 // the quota in bytes; 0 for none
}

// ParseMutable parses the mutable parameters of a request.
func ParseMutable(m map[string]string) (mutable, error) {
	var p mutable
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if k != ParamQuota {
			return p, csierr.Invalidf("unknown mutable parameter %q; the local driver knows %s", k, ParamQuota)
		}

		p.Given = true
		if m[k] == NoQuota {
			continue
		}

		var err error
		if p.Quota, err = parseQuota(m[k]); err != nil {
			return p, csierr.Invalidf("mutable parameter %q: %q is not %s, a number of bytes, or a size such as 10G or 10GiB", k, m[k], NoQuota)
		}
	}

	return p, nil
}

// parseQuota parses a number of bytes, or a size as in volume files. It rounds the number up to a
// multiple of 1 KiB, which is the kernel's unit for limits.
func parseQuota(text string) (int64, error) {
	bare, err := strconv.ParseUint(text, 10, 63)
	n := int64(bare)
	if err != nil {
		n, err = bytesize.Parse(text)
	}
	if err != nil {
		return 0, err
	}
	if n <= 0 || n > math.MaxInt64-1023 {
		return 0, errors.New("out of range")
	}

	return RoundQuota(n), nil
}

// RoundQuota rounds a number of bytes up to a multiple of 1 KiB. A number that is too large for
// rounding stays unchanged.
func RoundQuota(bytes int64) int64 {
	if bytes > math.MaxInt64-1023 {
		return bytes
	}
	return (bytes + 1023) / 1024 * 1024
}
