// Package inspect compares the recorded state with the host, without an agent: it reads a copy of
// the state database and the mount table. It serves hosts whose agent does not start, and the
// scripts that remove the package.
package inspect

import (
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

// Report is the result of Look.
type Report struct {
	DataDir string `json:"data_dir"`
	DB      string `json:"db"` // "ok", or the problem with it

	// AgentRunning warns that the records may be older than the mounts.
	AgentRunning bool     `json:"agent_running"`
	Draining     bool     `json:"draining,omitempty"` // new claims are refused
	NodeID       string   `json:"node_id,omitempty"`
	Volumes      []Volume `json:"volumes"`
	Leftovers    []Volume `json:"leftovers"` // the leftovers of forced deregisters
	Tests        []Test   `json:"tests,omitempty"`
	Unexplained  []Mount  `json:"unexplained_mounts"`

	// Elsewhere lists the mounts that an agent with another data dir made in the same runtime dir.
	OtherDataDir string   `json:"other_data_dir,omitempty"`
	Elsewhere    []Mount  `json:"other_mounts,omitempty"`
	Plugins      []Plugin `json:"plugins"`

	// Runtimes lists the volumes that container runtimes know under their own names.
	Runtimes []Runtime `json:"runtimes"`

	// Pending lists changes that the agent has not seen end. They do not count as findings.
	Pending  []api.PendingChange `json:"pending"`
	Findings []string            `json:"findings"`
}

// Volume is one record with the current state of its mounts.
type Volume struct {
	ID           string   `json:"id"`
	PluginID     string   `json:"plugin_id"`
	ExternalID   string   `json:"external_id"`
	Provision    string   `json:"provision,omitempty"`
	Attached     string   `json:"attached"`
	Staged       string   `json:"staged"`
	Claims       []Claim  `json:"claims"`
	Mounts       []Mount  `json:"mounts"`
	PendingCalls []string `json:"pending_calls,omitempty"`
	Guards       []string `json:"guards,omitempty"` // directories that refuse writes while nothing is mounted there
}

// Claim is one recorded claim.
type Claim struct {
	Alloc   string `json:"alloc"`
	State   string `json:"state"`
	Wanted  bool   `json:"wanted"`
	Owner   string `json:"owner,omitempty"`
	Adopted bool   `json:"adopted,omitempty"`
	Without string `json:"without_plugin,omitempty"` // how far its detach may go without the plugin
}

// Test is a volume of a plugin test that is running, or that was interrupted.
type Test struct {
	Plugin string  `json:"plugin_id"`
	Volume string  `json:"volume"`
	Mounts []Mount `json:"mounts"`
}

// Mount is one mount that is recorded or present.
type Mount struct {
	What   string `json:"what,omitempty"` // a volume.PlaceKind, and " for ALLOC" if a claim has the place
	Path   string `json:"path"`
	Is     string `json:"is"` // "as recorded", "in doubt", "missing", "another mount", "dead: …", "hung: …", "not recorded"
	Source string `json:"source,omitempty"`
	FSType string `json:"fs_type,omitempty"`
}

// Plugin is one plugin with a record.
type Plugin struct {
	ID     string `json:"id"`
	Driver string `json:"driver,omitempty"`
	PID    int    `json:"pid,omitempty"`
	Alive  bool   `json:"alive"`
	// Registered is set if the plugin was registered at run time.
	Registered bool `json:"registered,omitempty"`
}

// Runtime is a volume as a container runtime knows it.
type Runtime struct {
	volume.RuntimeVolume
	// Deregistered means that the volume of this name no longer exists. This does not count as a
	// finding.
	Deregistered bool `json:"deregistered,omitempty"`
}

// These are the states of a mount that Look does not report as findings. A mount is in doubt if a
// call with an unknown outcome may have made it or may still undo it.
const (
	asRecorded = "as recorded"
	inDoubt    = "in doubt"
)
