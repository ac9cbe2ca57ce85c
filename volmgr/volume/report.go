package volume

import (
	"fmt"
	"slices"
	"time"
)

// Services of a plugin, as those who find something wrong.
const (
	ByNode       = "node"
	ByController = "controller"
)

// Report is what a plugin said of a volume when it was asked. It lives in memory
// only.
type Report struct {
	Stats   *Stats // nil: nothing was said
	StatsAt time.Time
	// Node and Controller are how the services find the volume; nil where they
	// were not asked, do not tell, or did not answer.
	Node       *Checkup
	Controller *Checkup
	// Storage is the volume as the controller knows it, where that was asked for.
	Storage *StorageVolume
	// Silent are the calls that had no useful answer, each with the reason.
	Silent []string
}

// Checkup is what one service found wrong, and when.
type Checkup struct {
	At    time.Time
	Found []Condition
}

// Finding is one thing that a service found wrong.
type Finding struct {
	By string // ByNode or ByController
	At time.Time
	Condition
}

// Findings are those of both services, the node's first.
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

// String words a condition: "inaccessible, PathDown: no path to the array".
func (c Condition) String() string {
	words := c.Severity
	if c.Reason != "" {
		words += ", " + c.Reason
	}
	if c.Message != "" {
		words += ": " + c.Message
	}
	return words
}

// String words a finding, with who says so.
func (f Finding) String() string { return fmt.Sprintf("%s (%s)", f.Condition, f.By) }

// Same reports whether two checkups found the same.
func (c *Checkup) Same(o *Checkup) bool {
	found := func(c *Checkup) []Condition {
		if c == nil {
			return nil
		}
		return c.Found
	}
	return slices.Equal(found(c), found(o))
}

// PluginHealth is how a plugin finds its storage, and the volumes in it.
type PluginHealth struct {
	// Storage is what the node service finds wrong with the way to the storage, if
	// Asked has NodeGetStorageHealth.
	Storage []Condition
	// Volumes are those that the controller finds not well, if
	// Asked has ControllerListVolumeHealth. More is set where there are others.
	Volumes []Health
	More    bool
	// Asked are the calls that were answered, Silent those that were not, each with
	// the reason.
	Asked  []Kind
	Silent []string
}
