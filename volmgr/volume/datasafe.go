package volume

import (
	"slices"

	"github.com/volagent/volagent/volmgr/call"
)

// Safety says whether data is safe, as far as the agent knows.
type Safety string

// The values of Safety.
const (
	SafetyYes     Safety = "yes"     // no known problem endangers the data
	SafetyNo      Safety = "no"      // the plugin reports that data is lost or may be lost
	SafetyUnknown Safety = "unknown" // there is a problem that may endanger the data
)

// codeDataLoss is the gRPC code of unrecoverable data loss or corruption.
const codeDataLoss = "DataLoss"

// DataSafe reports whether the data of a volume is safe. The answer is "no" if the plugin reports a
// loss in its health or in its answer to the last step. The answer is "unknown" in these cases:
//
//   - A mount is dead, hangs, or is not the recorded one.
//   - A mount was unmounted lazily.
//   - The plugin cannot reach the storage.
//   - The plugin failed to make the volume usable.
//   - A deletion has begun.
//
// DataSafe is pure and total, like Explain.
func DataSafe(r Record, o Observed, at *Attempt, last Report) Safety {
	failed := at != nil && at.Err != nil
	findings := last.Findings()
	lost := slices.ContainsFunc(findings, func(f Finding) bool { return f.Severity == call.DataLoss })

	ill := slices.ContainsFunc(findings, func(f Finding) bool { return f.Severity != call.Degraded })
	switch {
	case lost, failed && at.Err.Code == codeDataLoss:
		return SafetyNo
	case ill, !r.mountsSound(o), at.unusable(), r.Volume.Provision == Deleting:
		return SafetyUnknown
	default:
		return SafetyYes
	}
}

// mountsSound reports whether no mount of the record shows a state in which written data may be
// lost.
func (r Record) mountsSound(o Observed) bool {
	sound := func(made *MountIdentity, s Sight) bool {
		switch s.Seen {
		case SeenNothing:
			return true
		case SeenMount:
			return made == nil || s.Is(made)
		default:
			return false
		}
	}

	if len(r.Node.Unseen) > 0 || !sound(r.Node.Mount, o.Staging) {
		return false
	}

	for alloc, c := range r.Claims {
		if !sound(c.Mount, o.Targets[alloc]) || !sound(c.BoundMount, o.Binds[alloc]) {
			return false
		}
	}

	return true
}

// unusable reports whether the plugin was asked to make the volume usable and failed.
func (at *Attempt) unusable() bool {
	if at == nil || at.Err == nil || at.Unsent || at.Err.Unsent {
		return false
	}
	return at.Action.Forward() || at.expands()
}
