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

// Plugin is a CSI plugin as the agent supervises it.
type Plugin struct {
	ID       string    `json:"id"`
	Type     string    `json:"type,omitempty"` // node, controller, monolith; empty until the plugin has said
	Runner   string    `json:"runner"`         // exec, socket or builtin
	Provider string    `json:"provider,omitempty"`
	Version  string    `json:"version,omitempty"`
	State    string    `json:"state"`
	Reason   string    `json:"reason,omitempty"`
	Since    time.Time `json:"since"`
	// Next is when a plugin that is backing off is started again.
	Next                   time.Time         `json:"next,omitzero"`
	PID                    int               `json:"pid,omitempty"`
	Restarts               int               `json:"restarts"`
	NodeID                 string            `json:"node_id,omitempty"`
	Topology               map[string]string `json:"topology,omitempty"`
	MaxVolumes             int64             `json:"max_volumes,omitempty"` // 0 is unlimited
	Volumes                []string          `json:"volumes"`               // registered with it
	Staged                 int               `json:"staged"`                // of those, on this host now
	ControllerCapabilities []string          `json:"controller_capabilities,omitempty"`
	NodeCapabilities       []string          `json:"node_capabilities,omitempty"`
	Socket                 string            `json:"socket,omitempty"`
	LogFile                string            `json:"log_file,omitempty"`
	LastExit               string            `json:"last_exit,omitempty"`
	// LastLog are the last lines the plugin wrote.
	LastLog []string `json:"last_log,omitempty"`
	// Pending says why a changed or removed plugin file is not in force yet.
	Pending string `json:"pending,omitempty"`
}

// Node is this host at a glance.
type Node struct {
	ID        string    `json:"id"`
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at"`
	DataDir   string    `json:"data_dir"`
	// DB is "ok", or what is wrong with the state DB; empty is not said.
	DB      string   `json:"db,omitempty"`
	State   string   `json:"state"` // "ok", or why the agent sends no call
	Plugins []Plugin `json:"plugins"`
	Volumes int      `json:"volumes"`
	Mounted int      `json:"mounted"`
	Free    int      `json:"free"`
	Claims  int      `json:"claims"`
	// Unaffected counts the volumes that no problem is about, neither their own nor
	// their plugin's.
	Unaffected int `json:"unaffected"`
	// Problems lists what a person should look at, the worst first.
	Problems []Problem `json:"problems"`
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
