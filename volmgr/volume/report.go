package volume

import (
	"fmt"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
)

// The services of a plugin, as the sources of findings.
const (
	ByNode       = "node"
	ByController = "controller"
)

// Report holds a plugin's answers about the state of a volume. It lives in memory only.
type Report struct {
	Stats   *call.Stats // nil if there was no answer
	StatsAt time.Time

	// Node and Controller are the checkups by the two services. Each is nil if the service was not
	// asked, cannot tell, or did not answer.
	Node       *Checkup
	Controller *Checkup

	// Storage is the volume as the controller reports it, if that was requested.
	Storage *call.StorageVolume

	// Silent lists the calls that had no useful answer, each with the reason.
	Silent []string
}

// Checkup is the list of problems that one service found, with the time.
type Checkup struct {
	At    time.Time
	Found []call.Condition
}

// Finding is one problem that a service found.
type Finding struct {
	By string // ByNode or ByController
	At time.Time
	call.Condition
}

// Findings returns the findings of both services, those of the node first.
func (r Report) Findings() (out []Finding) {
	add := func(by string, c *Checkup) {
		if c == nil {
			return
		}

		for _, f := range c.Found {
			out = append(out, Finding{By: by, At: c.At, Condition: f})
		}
	}

	add(ByNode, r.Node)
	add(ByController, r.Controller)
	return out
}

// String describes a finding and names the service that found it.
func (f Finding) String() string { return fmt.Sprintf("%s (%s)", f.Condition, f.By) }

// Same reports whether two checkups found the same problems.
func (c *Checkup) Same(o *Checkup) bool {
	found := func(c *Checkup) []call.Condition {
		if c == nil {
			return nil
		}
		return c.Found
	}
	return slices.Equal(found(c), found(o))
}

// PluginHealth is a plugin's report on its storage and on the volumes in it.
type PluginHealth struct {
	// Storage lists the problems that the node service found on the way to the storage. It is valid
	// if Asked has NodeGetStorageHealth.
	Storage []call.Condition

	// Volumes lists the volumes with problems that the controller found. It is valid if Asked has
	// ControllerListVolumeHealth. More is set if there are others.
	Volumes []call.Health
	More    bool

	// Asked lists the calls that were answered. Silent lists those that were not, each with the
	// reason.
	Asked  []call.Method
	Silent []string
}

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
