package volume

import "slices"

// Safety says whether data is safe, as far as it is known.
type Safety string

// Answers to whether data is safe.
const (
	SafetyYes     Safety = "yes"     // nothing that is known endangers it
	SafetyNo      Safety = "no"      // the plugin says that data is lost, or may be
	SafetyUnknown Safety = "unknown" // something is wrong that may concern it
)

// codeDataLoss is the gRPC code of unrecoverable data loss or corruption.
const codeDataLoss = "DataLoss"

// DataSafe says whether the data of a volume is safe. It is "no" if the plugin said so, by
// its health or in the answer to the last step. It is "unknown" while a mount is dead,
// hangs or is not the one that was made, after a lazy unmount, if the plugin cannot reach
// the storage, if the plugin failed to make the volume usable, and once a deletion has
// begun. DataSafe is pure and total, as Explain is.
func DataSafe(r Record, o Observed, at *Attempt, last Report) Safety {
	failed := at != nil && at.Err != nil
	findings := last.Findings()
	lost := slices.ContainsFunc(findings, func(f Finding) bool { return f.Severity == DataLoss })
	ill := slices.ContainsFunc(findings, func(f Finding) bool { return f.Severity != Degraded })
	switch {
	case lost, failed && at.Err.Code == codeDataLoss:
		return SafetyNo
	case ill, !r.mountsSound(o), at.unusable(), r.Volume.Provision == Deleting:
		return SafetyUnknown
	default:
		return SafetyYes
	}
}

// mountsSound reports whether no mount of the record was seen that may have lost, or may
// yet lose, what was written to it.
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

// unusable reports whether the plugin was asked to make the volume usable, and failed.
func (at *Attempt) unusable() bool {
	if at == nil || at.Err == nil || at.Unsent || at.Err.Unsent {
		return false
	}
	return at.Action.Forward() || at.expands()
}
