package request

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/volagent/volagent/agent/localdriver/csierr"
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
	ParamQuota = "quota"
	NoQuota    = "none"
)

// mutable holds the parsed mutable parameters.
type mutable struct {
	Given bool
	Quota int64 // bytes, 0 for none
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
			return p, csierr.Invalidf("mutable parameter %q: %q is not %s, a number of bytes, or a size such as 10GiB", k, m[k], NoQuota)
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

	return RoundQuota(int64(n) * unit), nil
}

// RoundQuota rounds bytes up to 1 KiB. A number that is too large for rounding stays unchanged.
func RoundQuota(bytes int64) int64 {
	if bytes > math.MaxInt64-1023 {
		return bytes
	}
	return (bytes + 1023) / 1024 * 1024
}
