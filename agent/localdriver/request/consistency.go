package request

import (
	"maps"
	"slices"

	"github.com/volagent/volagent/agent/localdriver/csierr"
)

// Snapshots and group snapshots have only one parameter, with only one possible value.
const (
	ParamConsistency   = "consistency"
	ConsistencyPerFile = "per-file"
)

// ParseConsistency reports whether the driver may copy a directory file by file while other
// processes write to it.
func ParseConsistency(m map[string]string) (perFile bool, err error) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		switch {
		case k != ParamConsistency:
			return false, csierr.Invalidf("unknown parameter %q; for snapshots the local driver knows %s", k, ParamConsistency)
		case m[k] != ConsistencyPerFile:
			return false, csierr.Invalidf("parameter %q: %q is not %s", k, m[k], ConsistencyPerFile)
		}
		perFile = true
	}

	return perFile, nil
}
