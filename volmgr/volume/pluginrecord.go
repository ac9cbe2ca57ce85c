package volume

import (
	"slices"
	"time"
)

// PluginRecord is all that is kept of a plugin over a restart of the agent:
// what it said of itself, the process that serves it, and the definition that
// process was started with.
type PluginRecord struct {
	ID string `json:"id"`
	// Info is the plugin's last answer. It outlives the definition, so that an
	// id never changes hands from one driver to another unnoticed.
	Info    PluginInfo    `json:"info"`
	Process PluginProcess `json:"process,omitzero"`
	// Definition is the one in use; nil when none is.
	Definition *PluginDefinition `json:"definition,omitempty"`
	// Stopped is set while the plugin is stopped on purpose: no agent starts it
	// until it is told to.
	Stopped bool `json:"stopped,omitempty"`
}

// PluginProcess names one process beyond doubt. The nonce is stored before the
// fork and the rest after it: a nonce without a PID means that there may be
// such a process, with the nonce in its environment.
type PluginProcess struct {
	Nonce     string `json:"nonce,omitempty"`
	PID       int    `json:"pid,omitempty"`
	StartTime uint64 `json:"start_time,omitempty"` // field 22 of /proc/PID/stat, clock ticks since boot
	Boot      string `json:"boot,omitempty"`       // boot id
}

// PluginDefinition is a plugin file as it was read, defaults filled in and
// variables not yet expanded. Exactly one of Exec, Socket and Builtin is set.
type PluginDefinition struct {
	ID       string `json:"id"`
	Type     string `json:"type,omitempty"` // node, controller, monolith; empty asks the plugin
	Instance string `json:"instance,omitempty"`

	Exec    *PluginExec `json:"exec,omitempty"`
	Socket  string      `json:"socket,omitempty"`
	Builtin string      `json:"builtin,omitempty"`

	ProbeInterval     time.Duration `json:"probe_interval"`
	ProbeTimeout      time.Duration `json:"probe_timeout"`
	StartTimeout      time.Duration `json:"start_timeout"`
	NodeTimeout       time.Duration `json:"node_timeout"`
	ControllerTimeout time.Duration `json:"controller_timeout"`
	MaxInFlight       int           `json:"max_in_flight"`
	OnChange          string        `json:"on_change"` // OnChangePending or OnChangeRestart

	// File is where it stands; empty for the plugin that exists without one.
	File string `json:"file,omitempty"`
}

// What a changed plugin file does while volumes are staged through the plugin.
const (
	OnChangePending = "pending" // nothing until they are gone
	OnChangeRestart = "restart" // the plugin is restarted under them
)

// PluginExec is a command that the agent runs.
type PluginExec struct {
	Command []string            `json:"command"`
	Env     map[string]EnvValue `json:"env,omitempty"`
}

// EnvValue is the value of an environment variable, or where to read it.
type EnvValue struct {
	Value  string     `json:"value,omitempty"`
	Secret *SecretRef `json:"secret,omitempty"`
}

// Runner names the way in which the plugin is run: exec, socket or builtin.
func (d *PluginDefinition) Runner() string {
	switch {
	case d.Exec != nil:
		return "exec"
	case d.Socket != "":
		return "socket"
	default:
		return "builtin"
	}
}

// Equal reports whether both ask for the same plugin, wherever they stand.
func (d *PluginDefinition) Equal(o *PluginDefinition) bool {
	if d == nil || o == nil {
		return d == o
	}
	a, b := *d, *o
	a.File, b.File = "", ""
	a.Exec, b.Exec = nil, nil
	return a == b && d.Exec.equal(o.Exec)
}

func (e *PluginExec) equal(o *PluginExec) bool {
	if e == nil || o == nil {
		return e == o
	}
	if !slices.Equal(e.Command, o.Command) || len(e.Env) != len(o.Env) {
		return false
	}
	for name, v := range e.Env {
		w, ok := o.Env[name]
		if !ok || v.Value != w.Value || (v.Secret == nil) != (w.Secret == nil) {
			return false
		}
		if v.Secret != nil && *v.Secret != *w.Secret {
			return false
		}
	}
	return true
}
