// Package inspect compares the recorded state with the host without an agent: it reads a copy of
// the state database and the mount table. It is used on hosts where the agent does not start, and
// by the scripts that remove the package.
package inspect

import (
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

// Report is the result of Look.
type Report struct {
	DataDir string `json:"data_dir"`
	DB      string `json:"db"` // "ok", or the reason why the state database cannot be read

	// AgentRunning is set if an agent runs. The records may then be older than the mounts.
	AgentRunning bool     `json:"agent_running"`
	Draining     bool     `json:"draining,omitempty"` // the agent refuses new claims
	NodeID       string   `json:"node_id,omitempty"`
	Volumes      []Volume `json:"volumes"`
	Leftovers    []Volume `json:"leftovers"` // the leftovers of forced deregisters
	Tests        []Test   `json:"tests,omitempty"`
	Unexplained  []Mount  `json:"unexplained_mounts"`

	// OtherDataDir is the data dir of another agent that uses the same runtime dir, and Elsewhere
	// lists that agent's mounts.
	OtherDataDir string   `json:"other_data_dir,omitempty"`
	Elsewhere    []Mount  `json:"other_mounts,omitempty"`
	Plugins      []Plugin `json:"plugins"`

	// Runtimes lists the volumes of container runtimes. A runtime has its own name for each volume.
	Runtimes []Runtime `json:"runtimes"`

	// Pending lists changes of which the agent does not know the result. They do not count as
	// findings.
	Pending  []api.PendingChange `json:"pending"`
	Findings []string            `json:"findings"`
}

// Volume is a recorded volume with the present state of its mounts.
type Volume struct {
	ID           string   `json:"id"`
	PluginID     string   `json:"plugin_id"`
	ExternalID   string   `json:"external_id"`
	Provision    string   `json:"provision,omitempty"`
	Hold         string   `json:"hold,omitempty"` // right to use a shared volume; empty without one
	Attached     string   `json:"attached"`
	Staged       string   `json:"staged"`
	Claims       []Claim  `json:"claims"`
	Mounts       []Mount  `json:"mounts"`
	PendingCalls []string `json:"pending_calls,omitempty"`
	Guards       []string `json:"guards,omitempty"` // directories with the immutable flag
}

// Claim is one recorded claim.
type Claim struct {
	Alloc   string `json:"alloc"`
	State   string `json:"state"`
	Wanted  bool   `json:"wanted"`
	Owner   string `json:"owner,omitempty"`
	Adopted bool   `json:"adopted,omitempty"`
	Without string `json:"without_plugin,omitempty"` // how to unmount without the plugin
}

// Test is a volume of a plugin test that is running, or that was interrupted.
type Test struct {
	Plugin string  `json:"plugin_id"`
	Volume string  `json:"volume"`
	Mounts []Mount `json:"mounts"`
}

// Mount is a mount that is recorded, present, or both.
type Mount struct {
	What   string `json:"what,omitempty"` // a volume.PlaceKind, and " for ALLOC" if a claim has the place
	Path   string `json:"path"`
	Is     string `json:"is"` // "as recorded", "in doubt", "missing", "another mount", "dead: …", "hung: …", "not recorded"
	Source string `json:"source,omitempty"`
	FSType string `json:"fs_type,omitempty"`
}

// Plugin is a recorded plugin.
type Plugin struct {
	ID     string `json:"id"`
	Driver string `json:"driver,omitempty"`
	PID    int    `json:"pid,omitempty"`
	Alive  bool   `json:"alive"`
	// Registered is set if the plugin was registered at run time.
	Registered bool `json:"registered,omitempty"`
}

// Runtime is a volume of a container runtime.
type Runtime struct {
	volume.RuntimeVolume
	// Deregistered is set if the volume is no longer registered in the agent. This does not count
	// as a finding.
	Deregistered bool `json:"deregistered,omitempty"`
}

// These are the states of a mount that Look does not report as findings. A mount is in doubt if a
// call with an unknown result may have made or removed the mount, or may still do so.
const (
	asRecorded = "as recorded"
	inDoubt    = "in doubt"
)
