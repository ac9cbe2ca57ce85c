package volume

import (
	"fmt"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
)

// These constants name the services of a plugin that can report findings.
const (
	ByNode       = "node"
	ByController = "controller"
)

// Report holds a plugin's answers about the state of a volume. The agent keeps a Report only in
// memory.
type Report struct {
	Stats   *call.Stats // nil if the plugin did not answer
	StatsAt time.Time

	// Node and Controller hold the problems that the node service and the controller service found.
	// Each is nil if the agent did not ask the service, or if the service did not answer.
	Node       *Checkup
	Controller *Checkup

	// Storage describes the volume as the controller sees it. It is nil if the agent did not ask
	// the controller.
	Storage *call.StorageVolume

	// Silent lists the calls that brought no useful answer, each with the reason.
	Silent []string
}

// Checkup lists the problems that one service found in one check.
type Checkup struct {
	At    time.Time
	Found []call.Condition
}

// Finding is one problem that a service found.
type Finding struct {
	By string // service that found the problem, ByNode or ByController
	At time.Time
	call.Condition
}

// Findings returns the findings of the node service, followed by those of the controller service.
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

// Same reports whether two checkups contain the same problems.
func (c *Checkup) Same(o *Checkup) bool {
	found := func(c *Checkup) []call.Condition {
		if c == nil {
			return nil
		}
		return c.Found
	}
	return slices.Equal(found(c), found(o))
}

// PluginHealth is a plugin's report about its storage and its volumes.
type PluginHealth struct {
	// Storage lists the problems that the node service found in its connection to the storage. The
	// list is valid only if Asked contains NodeGetStorageHealth.
	Storage []call.Condition

	// Volumes lists the volumes in which the controller found problems. The list is valid only if
	// Asked contains ControllerListVolumeHealth. More is set if the list is incomplete.
	Volumes []call.Health
	More    bool

	// Asked lists the calls that the plugin answered. Silent lists the calls that it did not
	// answer, each with the reason.
	Asked  []call.Method
	Silent []string
}

// Safety says whether the data of a volume is safe, as far as the agent knows.
type Safety string

// These are the values of Safety.
const (
	SafetyYes     Safety = "yes"     // no known problem endangers the data
	SafetyNo      Safety = "no"      // the plugin reports that data is lost or may be lost
	SafetyUnknown Safety = "unknown" // a known problem may endanger the data
)

// DataSafe reports whether the data of a volume is safe. The result is "no" if the plugin reports
// lost data, either in its health report or in its answer to the last step. The result is "unknown"
// in these cases:
//
//   - A mount is dead, hangs, or differs from the recorded one.
//   - A mount was unmounted lazily.
//   - The plugin cannot reach the storage.
//   - The plugin failed to make the volume usable.
//   - A deletion has begun.
//
// DataSafe has no side effects and accepts any arguments, like Explain.
func DataSafe(r Record, o Observed, at *Attempt, last Report) Safety {
	failed := at != nil && at.Err != nil
	findings := last.Findings()
	lost := slices.ContainsFunc(findings, func(f Finding) bool { return f.Severity == call.DataLoss })

	ill := slices.ContainsFunc(findings, func(f Finding) bool { return f.Severity != call.Degraded })
	switch {
	case lost, failed && at.Err.Code == CodeDataLoss:
		return SafetyNo
	case ill, !mountsAreSound(r, o), at.unusable(), r.Volume.Provision == Deleting:
		return SafetyUnknown
	default:
		return SafetyYes
	}
}

// mountsAreSound reports whether the state of all mounts is such that written data is safe.
func mountsAreSound(r Record, o Observed) bool {
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
