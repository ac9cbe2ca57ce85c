package api

import "time"

// Plugin states, in the words of the supervisor.
const (
	PluginStarting   = "starting"
	PluginReady      = "ready"
	PluginUnhealthy  = "unhealthy"
	PluginBackingOff = "backing-off"
	PluginStopped    = "stopped"
	PluginFailed     = "failed"
)

// Plugin is a CSI plugin as the agent supervises it: one process, or several
// parts. Of several, what is each one's own (PID, Socket, LogFile, LastExit,
// LastLog) stands in Parts alone; Restarts are those of all.
type Plugin struct {
	ID       string `json:"id"`
	Type     string `json:"type,omitempty"` // node, controller, monolith, node+controller; empty until the plugin has said
	Runner   string `json:"runner"`         // exec, container, unit, socket or builtin; those of parts that differ with a "+" between
	Provider string `json:"provider,omitempty"`
	Version  string `json:"version,omitempty"`
	// State of several parts: each service is as the best of its parts, since one
	// that is ready is enough, and the plugin is as the worse of its services. From
	// good to bad that is ready, starting, stopped, unhealthy, backing-off, failed.
	// A plugin that is ready although a part is not says so in Reason.
	State  string    `json:"state"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
	// Next is when a plugin that is backing off is started again.
	Next                   time.Time         `json:"next,omitzero"`
	PID                    int               `json:"pid,omitempty"`
	Restarts               int               `json:"restarts"`
	NodeID                 string            `json:"node_id,omitempty"`
	Topology               map[string]string `json:"topology,omitempty"`
	MaxVolumes             int64             `json:"max_volumes,omitempty"` // 0 is unlimited
	Volumes                []string          `json:"volumes"`               // registered with it
	Staged                 int               `json:"staged"`                // of those, on this host now
	FUSEClaims             int               `json:"fuse_claims"`           // with a FUSE mount: it breaks with the process that serves it
	ControllerCapabilities []string          `json:"controller_capabilities,omitempty"`
	NodeCapabilities       []string          `json:"node_capabilities,omitempty"`
	Socket                 string            `json:"socket,omitempty"`
	LogFile                string            `json:"log_file,omitempty"`
	LastExit               string            `json:"last_exit,omitempty"`
	// LastLog are the last lines the plugin wrote.
	LastLog []string `json:"last_log,omitempty"`
	// Pending says why a changed or removed plugin file is not in force yet.
	Pending string `json:"pending,omitempty"`
	// Warnings are about where the plugin's process lives; it is used all the same.
	Warnings []string `json:"warnings,omitempty"`
	// How many parts serve controller calls, and node calls, and how many are to. A
	// monolith counts as both, and what has not said yet what it is as a node.
	ControllersHealthy  int `json:"controllers_healthy"`
	ControllersExpected int `json:"controllers_expected"`
	NodesHealthy        int `json:"nodes_healthy"`
	NodesExpected       int `json:"nodes_expected"`
	// Parts are what the plugin consists of, the node part first; mostly there is
	// one.
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
	// File is empty for what exists without one, and Registered set where it came at
	// run time.
	File       string   `json:"file,omitempty"`
	Registered bool     `json:"registered,omitempty"`
	Version    string   `json:"version,omitempty"`
	LastExit   string   `json:"last_exit,omitempty"`
	LogFile    string   `json:"log_file,omitempty"`
	LastLog    []string `json:"last_log,omitempty"`
	Pending    string   `json:"pending,omitempty"`
	// Running is the definition in use, in the keys of plugin files, without what
	// is as it is by default. Of secrets it has the references, of other variables
	// only that they are set. Wanted is what the file, or the registration, says instead: keys that
	// differ, "-" for those that it does not have any more.
	Running map[string]string `json:"running,omitempty"`
	Wanted  map[string]string `json:"wanted,omitempty"`
	// Warnings are about where the process lives; it is used all the same.
	Warnings []string `json:"warnings,omitempty"`
}

// PluginResult says what a registration did.
type PluginResult struct {
	// Outcome is "registered", "updated" or "unchanged".
	Outcome string `json:"outcome"`
	Plugin  Plugin `json:"plugin"`
}

// Node is this host at a glance.
type Node struct {
	ID        string    `json:"id"`
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at"`
	DataDir   string    `json:"data_dir"`
	// DB is "ok", or what is wrong with the state DB; empty is not said.
	DB    string `json:"db,omitempty"`
	State string `json:"state"` // "ok", or why the agent sends no call
	// Draining is set while claims are refused because the host is to be emptied, and
	// Drain then says how far that is.
	Draining bool     `json:"draining"`
	Drain    *Drain   `json:"drain,omitempty"`
	Plugins  []Plugin `json:"plugins"`
	Volumes  int      `json:"volumes"`
	Mounted  int      `json:"mounted"`
	Free     int      `json:"free"`
	Claims   int      `json:"claims"`
	// Unaffected counts the volumes that no problem is about, neither their own nor
	// their plugin's.
	Unaffected int `json:"unaffected"`
	// Problems lists what a person should look at, the worst first.
	Problems []Problem `json:"problems"`
	// Pending are expansions, modifies and snapshots that have not been seen to end.
	// That alone is no problem.
	Pending []PendingChange `json:"pending"`
}

// PendingChange is a change of storage that has not been seen to end.
type PendingChange struct {
	Subject string    `json:"subject"` // a volume or a snapshot, with its noun: volume "data"
	Since   time.Time `json:"since,omitzero"`
	Message string    `json:"message"`
	Command string    `json:"command"` // shows it, or goes on with it
}

// Problem is one thing that is wrong on the host.
type Problem struct {
	Subject string `json:"subject"` // a volume, a plugin, or "agent"
	// State is in one word how the subject is ("stuck"), Since is since when.
	State   string    `json:"state,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Message string    `json:"message"`
	Command string    `json:"command,omitempty"` // what to type next
}
