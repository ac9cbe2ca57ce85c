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
