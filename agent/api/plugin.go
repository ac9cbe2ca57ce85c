package api

import "time"

// The states of a plugin, with the names that the supervisor uses.
const (
	PluginStarting   = "starting"
	PluginReady      = "ready"
	PluginUnhealthy  = "unhealthy"
	PluginBackingOff = "backing-off"
	PluginStopped    = "stopped"
	PluginFailed     = "failed"
	PluginDisabled   = "disabled" // the plugin file has enabled: false
)

// Plugin is a CSI plugin that the agent supervises: one process, or several parts. If there are
// several parts, Parts contains the fields that differ between them (PID, Socket, LogFile,
// LastExit, LastLog), and they are empty here. Restarts is the sum over all parts.
type Plugin struct {
	ID       string `json:"id"`
	Type     string `json:"type,omitempty"` // node, controller, monolith, node+controller; empty until the plugin reports it
	Runner   string `json:"runner"`         // exec, container, unit, socket or builtin; the runners of several parts are joined with "+"
	Provider string `json:"provider,omitempty"`
	Version  string `json:"version,omitempty"`

	// State combines the states of all parts. One ready part is enough for each of the two
	// services, so the node service and the controller service each have the state of their best
	// part. The plugin has the state of the worse service. The states from best to worst are ready,
	// starting, stopped, unhealthy, backing-off and failed. If a plugin is ready but one of its
	// parts is not, Reason describes the problem of that part.
	State  string    `json:"state"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`

	// Next is the time of the next start, if the plugin is backing off.
	Next                   time.Time         `json:"next,omitzero"`
	PID                    int               `json:"pid,omitempty"`
	Restarts               int               `json:"restarts"`
	NodeID                 string            `json:"node_id,omitempty"`
	Topology               map[string]string `json:"topology,omitempty"`
	MaxVolumes             int64             `json:"max_volumes,omitempty"` // 0 means unlimited
	Volumes                []string          `json:"volumes"`               // the volumes of this plugin
	Staged                 int               `json:"staged"`                // the number of those volumes that are on this host
	FUSEClaims             int               `json:"fuse_claims"`           // the number of claims with a FUSE mount, which breaks when the plugin's process ends
	ControllerCapabilities []string          `json:"controller_capabilities,omitempty"`
	NodeCapabilities       []string          `json:"node_capabilities,omitempty"`
	Socket                 string            `json:"socket,omitempty"`
	LogFile                string            `json:"log_file,omitempty"`
	LastExit               string            `json:"last_exit,omitempty"`

	// LastLog contains the last lines of the plugin's log.
	LastLog []string `json:"last_log,omitempty"`

	// Pending is the reason why a changed or removed plugin file is not in effect yet.
	Pending string `json:"pending,omitempty"`

	// Warnings describe problems in the environment of the plugin's process, and in its settings. The
	// agent uses the plugin nevertheless.
	Warnings []string `json:"warnings,omitempty"`

	// Fence names the proof that a lost host no longer writes. It is one of the Fence constants, or
	// empty if the plugin file has no fence.
	Fence string `json:"fence,omitempty"`

	// These fields count the healthy and the expected parts that serve controller calls and node
	// calls. A monolith counts as both. A part that has not reported its type yet counts as a node.
	ControllersHealthy  int `json:"controllers_healthy"`
	ControllersExpected int `json:"controllers_expected"`
	NodesHealthy        int `json:"nodes_healthy"`
	NodesExpected       int `json:"nodes_expected"`

	// Parts lists the plugin's parts, the node part first. Most plugins have a single part.
	Parts []PluginPart `json:"parts"`
}

// PluginPart is one part of a plugin, which is one process with its own plugin file.
type PluginPart struct {
	Type     string    `json:"type,omitempty"`
	Instance string    `json:"instance,omitempty"`
	State    string    `json:"state"`
	Reason   string    `json:"reason,omitempty"`
	Since    time.Time `json:"since"`
	Next     time.Time `json:"next,omitzero"`
	Restarts int       `json:"restarts"`
	PID      int       `json:"pid,omitempty"`
	Socket   string    `json:"socket,omitempty"`
	Runner   string    `json:"runner"`

	// File is empty for a part without a plugin file. Registered is set for a part that was
	// registered at run time.
	File       string   `json:"file,omitempty"`
	Registered bool     `json:"registered,omitempty"`
	Version    string   `json:"version,omitempty"`
	LastExit   string   `json:"last_exit,omitempty"`
	LogFile    string   `json:"log_file,omitempty"`
	LastLog    []string `json:"last_log,omitempty"`
	Pending    string   `json:"pending,omitempty"`

	// Running is the definition in use, with the keys of plugin files. It omits values that equal
	// the default. It shows the reference of a secret, and hides the values of other environment
	// variables. Wanted is set if the plugin file or the registration differs from Running. It
	// contains only the keys that differ, with "-" for a removed key.
	Running map[string]string `json:"running,omitempty"`
	Wanted  map[string]string `json:"wanted,omitempty"`

	// Warnings describe problems in the environment of the process. The agent uses the part
	// nevertheless.
	Warnings []string `json:"warnings,omitempty"`
}

// The values of a plugin's Fence.
const (
	FenceDetach        = "detach"
	FenceDetachWhenOff = "detach-when-off"
	FenceHook          = "hook"
)

// The types of a plugin's parts.
const (
	PartNode       = "node"
	PartController = "controller"
	PartMonolith   = "monolith" // node and controller in one process
)

// Part restricts a request to some parts of a plugin. Empty fields match every part.
type Part struct {
	Type     string // one of the Part constants
	Instance string
}

// PluginResult is the result of a registration.
type PluginResult struct {
	// Outcome is OutcomeRegistered, OutcomeUpdated or OutcomeUnchanged.
	Outcome string `json:"outcome"`
	Plugin  Plugin `json:"plugin"`
}

// OK is the value of Node.State and of the field DB if there is no problem.
const OK = "ok"

// SubjectAgent is the subject of a Problem of the agent itself.
const SubjectAgent = "agent"

// Node describes the state of this host.
type Node struct {
	ID        string    `json:"id"`
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at"`
	DataDir   string    `json:"data_dir"`

	// DB is "ok", or the problem of the state database. It is empty if the answer does not include
	// the database.
	DB    string `json:"db,omitempty"`
	State string `json:"state"` // "ok", or the reason why the agent sends no calls to plugins

	// Draining is set while the agent refuses claims because a person drains the host. Drain then
	// shows the progress.
	Draining bool     `json:"draining"`
	Drain    *Drain   `json:"drain,omitempty"`
	Plugins  []Plugin `json:"plugins"`
	Volumes  int      `json:"volumes"`
	Mounted  int      `json:"mounted"`
	Free     int      `json:"free"`
	Claims   int      `json:"claims"`

	// Unaffected is the number of volumes without a problem whose plugin also has no problem.
	Unaffected int `json:"unaffected"`

	// Problems lists the problems that a person must solve, the worst first.
	Problems []Problem `json:"problems"`

	// Pending lists the expansions, modifications and snapshots whose completion the agent has not
	// seen. Such a change is not necessarily a problem.
	Pending []PendingChange `json:"pending"`

	// Cluster is set if a cluster is configured.
	Cluster *NodeCluster `json:"cluster,omitempty"`
}

// PendingChange is a change of storage whose completion the agent has not seen.
type PendingChange struct {
	Subject string    `json:"subject"` // a volume or a snapshot, such as: volume "data"
	Since   time.Time `json:"since,omitzero"`
	Message string    `json:"message"`
	Command string    `json:"command"` // the command that shows the change or continues it
}

// Problem is one problem on the host.
type Problem struct {
	Subject string `json:"subject"` // a volume, a plugin, or SubjectAgent
	// State describes the subject in one word ("stuck"). Since is the time when the subject entered
	// that state.
	State   string    `json:"state,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Message string    `json:"message"`
	Command string    `json:"command,omitempty"` // the command to run next
}
