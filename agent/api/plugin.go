package api

import "time"

// Plugin states, as the supervisor names them.
const (
	PluginStarting   = "starting"
	PluginReady      = "ready"
	PluginUnhealthy  = "unhealthy"
	PluginBackingOff = "backing-off"
	PluginStopped    = "stopped"
	PluginFailed     = "failed"
)

// Plugin is a CSI plugin as the agent supervises it: one process, or several parts. For several
// parts, the fields that each part has for itself (PID, Socket, LogFile, LastExit, LastLog) are set
// in Parts only. Restarts is the sum over all parts.
type Plugin struct {
	ID       string `json:"id"`
	Type     string `json:"type,omitempty"` // node, controller, monolith, node+controller; empty until the plugin has reported it
	Runner   string `json:"runner"`         // exec, container, unit, socket or builtin; different runners of parts are joined with "+"
	Provider string `json:"provider,omitempty"`
	Version  string `json:"version,omitempty"`

	// State combines the states of several parts. A service has the state of its best part, since
	// one ready part is enough. The plugin has the state of its worse service. From good to bad the
	// states are ready, starting, stopped, unhealthy, backing-off, failed. If a plugin is ready but
	// one of its parts is not, Reason says so.
	State  string    `json:"state"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`

	// Next is the time of the next start of a plugin that is backing off.
	Next                   time.Time         `json:"next,omitzero"`
	PID                    int               `json:"pid,omitempty"`
	Restarts               int               `json:"restarts"`
	NodeID                 string            `json:"node_id,omitempty"`
	Topology               map[string]string `json:"topology,omitempty"`
	MaxVolumes             int64             `json:"max_volumes,omitempty"` // 0 is unlimited
	Volumes                []string          `json:"volumes"`               // the volumes registered with it
	Staged                 int               `json:"staged"`                // the number of those volumes that are on this host now
	FUSEClaims             int               `json:"fuse_claims"`           // the number of claims with a FUSE mount, which breaks when its process ends
	ControllerCapabilities []string          `json:"controller_capabilities,omitempty"`
	NodeCapabilities       []string          `json:"node_capabilities,omitempty"`
	Socket                 string            `json:"socket,omitempty"`
	LogFile                string            `json:"log_file,omitempty"`
	LastExit               string            `json:"last_exit,omitempty"`

	// LastLog holds the last lines that the plugin wrote.
	LastLog []string `json:"last_log,omitempty"`

	// Pending says why a changed or removed plugin file does not apply yet.
	Pending string `json:"pending,omitempty"`

	// Warnings are about the environment of the plugin's process. The agent uses the plugin
	// nevertheless.
	Warnings []string `json:"warnings,omitempty"`

	// The numbers of parts that serve controller calls and node calls, and the numbers that should.
	// A monolith counts as both. A part that has not reported its type yet counts as a node.
	ControllersHealthy  int `json:"controllers_healthy"`
	ControllersExpected int `json:"controllers_expected"`
	NodesHealthy        int `json:"nodes_healthy"`
	NodesExpected       int `json:"nodes_expected"`

	// Parts are the plugin's parts, the node part first. Most plugins have one.
	Parts []PluginPart `json:"parts"`
}

// PluginPart is one process of a plugin, with a file of its own.
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

	// File is empty for a part that exists without a file. Registered is set for a part that was
	// registered at run time.
	File       string   `json:"file,omitempty"`
	Registered bool     `json:"registered,omitempty"`
	Version    string   `json:"version,omitempty"`
	LastExit   string   `json:"last_exit,omitempty"`
	LogFile    string   `json:"log_file,omitempty"`
	LastLog    []string `json:"last_log,omitempty"`
	Pending    string   `json:"pending,omitempty"`

	// Running is the definition in use, in the keys of plugin files, without values that equal the
	// default. It shows secrets as their references, and of other variables only that they are set.
	// Wanted is the definition in the file, or in the registration, if it differs: the keys that
	// differ, with "-" for a key that was removed.
	Running map[string]string `json:"running,omitempty"`
	Wanted  map[string]string `json:"wanted,omitempty"`

	// Warnings are about the environment of the process. The agent uses the part nevertheless.
	Warnings []string `json:"warnings,omitempty"`
}

// Part restricts a request to some parts of a plugin. Empty fields match every part.
type Part struct {
	Type     string // node, controller or monolith
	Instance string
}

// PluginResult is the result of a registration.
type PluginResult struct {
	// Outcome is "registered", "updated" or "unchanged".
	Outcome string `json:"outcome"`
	Plugin  Plugin `json:"plugin"`
}

// Node is an overview of this host.
type Node struct {
	ID        string    `json:"id"`
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at"`
	DataDir   string    `json:"data_dir"`

	// DB is "ok", or the problem of the state database. Empty means that the answer does not report
	// it.
	DB    string `json:"db,omitempty"`
	State string `json:"state"` // "ok", or the reason why the agent sends no calls

	// Draining is set while the agent refuses claims because the host is being drained. Drain then
	// shows the progress.
	Draining bool     `json:"draining"`
	Drain    *Drain   `json:"drain,omitempty"`
	Plugins  []Plugin `json:"plugins"`
	Volumes  int      `json:"volumes"`
	Mounted  int      `json:"mounted"`
	Free     int      `json:"free"`
	Claims   int      `json:"claims"`

	// Unaffected is the number of volumes that have no problem and whose plugin has none.
	Unaffected int `json:"unaffected"`

	// Problems lists the problems that need a person's attention, the worst first.
	Problems []Problem `json:"problems"`

	// Pending are expansions, modifies and snapshots of which the agent has not seen the end. A
	// pending change alone is not a problem.
	Pending []PendingChange `json:"pending"`
}

// PendingChange is a change of storage of which the agent has not seen the end.
type PendingChange struct {
	Subject string    `json:"subject"` // a volume or a snapshot, with its noun: volume "data"
	Since   time.Time `json:"since,omitzero"`
	Message string    `json:"message"`
	Command string    `json:"command"` // the command that shows the change or continues it
}

// Problem is one problem of the host.
type Problem struct {
	Subject string `json:"subject"` // a volume, a plugin, or "agent"
	// State describes the subject in one word ("stuck"). Since is the time when that state began.
	State   string    `json:"state,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Message string    `json:"message"`
	Command string    `json:"command,omitempty"` // the command to run next
}
