package volume

import (
	"maps"
	"reflect"
	"slices"
	"time"
)

// PluginRecord is all that is kept of a plugin over a restart of the agent:
// what it said of itself, the process that serves it, and the definition that
// process was started with.
type PluginRecord struct {
	// ID is the plugin's id, and the record's key. A plugin with several parts has
	// a record of each; those of the further ones have keys of their own, and name
	// the plugin.
	ID     string `json:"id"`
	Plugin string `json:"plugin,omitempty"`
	// Info is the plugin's last answer. It outlives the definition, so that an
	// id never changes hands from one driver to another unnoticed.
	Info    PluginInfo    `json:"info"`
	Process PluginProcess `json:"process,omitzero"`
	// Definition is the one in use; nil when none is.
	Definition *PluginDefinition `json:"definition,omitempty"`
	// Stopped is set while the plugin is stopped on purpose: no agent starts it
	// until it is told to.
	Stopped bool `json:"stopped,omitempty"`
	// Scratch is what a test of the plugin may have left; nil is nothing.
	Scratch *Scratch `json:"scratch,omitempty"`
}

// Of is the id of the plugin that the record is about.
func (r PluginRecord) Of() string {
	if r.Plugin != "" {
		return r.Plugin
	}
	return r.ID
}

// Empty reports whether nothing is remembered of a part that is no more.
func (r PluginRecord) Empty() bool { return r.Plugin != "" && r.Definition == nil }

// PluginProcess names one process beyond doubt. The nonce is stored before the
// fork and the rest after it: a nonce without a PID means that there may be
// such a process, with the nonce in its environment, or such a container, with
// the nonce as a label.
type PluginProcess struct {
	Nonce     string `json:"nonce,omitempty"`
	PID       int    `json:"pid,omitempty"`
	StartTime uint64 `json:"start_time,omitempty"` // field 22 of /proc/PID/stat, clock ticks since boot
	Boot      string `json:"boot,omitempty"`       // boot id
	Container string `json:"container,omitempty"`  // id of the container whose main process it is
}

// PluginDefinition is a plugin file as it was read, defaults filled in and
// variables not yet expanded. Exactly one of Exec, Container, Unit, Socket and
// Builtin is set.
type PluginDefinition struct {
	ID       string `json:"id"`
	Type     string `json:"type,omitempty"` // node, controller, monolith; empty asks the plugin
	Instance string `json:"instance,omitempty"`

	Exec      *PluginExec      `json:"exec,omitempty"`
	Container *PluginContainer `json:"container,omitempty"`
	Unit      string           `json:"unit,omitempty"` // a systemd unit that is started and watched
	Socket    string           `json:"socket,omitempty"`
	Builtin   string           `json:"builtin,omitempty"`

	ProbeInterval     time.Duration `json:"probe_interval"`
	ProbeTimeout      time.Duration `json:"probe_timeout"`
	StartTimeout      time.Duration `json:"start_timeout"`
	NodeTimeout       time.Duration `json:"node_timeout"`
	ControllerTimeout time.Duration `json:"controller_timeout"`
	MaxInFlight       int           `json:"max_in_flight"`
	OnChange          string        `json:"on_change"` // OnChangePending or OnChangeRestart
	// StatsInterval is how often the plugin is asked how mounted volumes are: 0 is never, nil is as
	// often as the agent is told to.
	StatsInterval *time.Duration `json:"stats_interval,omitempty"`
	// UnmaskedSecrets are keys of secrets whose values are names: they are not masked in
	// what the plugin says.
	UnmaskedSecrets []string `json:"unmasked_secrets,omitempty"`

	// File is where it stands; empty for the plugin that exists without one, and
	// for those that were registered.
	File string `json:"file,omitempty"`
	// Registered is set where it came at run time and stands in no file.
	Registered bool `json:"registered,omitempty"`
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

// PluginContainer is a container that the agent has a runtime run.
type PluginContainer struct {
	Runtime string              `json:"runtime"` // RuntimePodman or RuntimeDocker
	Image   string              `json:"image"`
	Args    []string            `json:"args,omitempty"` // follow the image's entrypoint
	Env     map[string]EnvValue `json:"env,omitempty"`
	Mounts  []string            `json:"mounts,omitempty"` // SOURCE:TARGET[:OPTIONS], beside what each plugin gets
	Pull    string              `json:"pull"`             // PullNever or PullMissing
}

// Container runtimes, and what becomes of an image that is not there.
const (
	RuntimePodman = "podman"
	RuntimeDocker = "docker"
	PullNever     = "never"
	PullMissing   = "missing"
)

// EnvValue is the value of an environment variable, or where to read it.
type EnvValue struct {
	Value  string     `json:"value,omitempty"`
	Secret *SecretRef `json:"secret,omitempty"`
}

// Runner names the way in which the plugin is run: exec, container, unit, socket
// or builtin.
func (d *PluginDefinition) Runner() string {
	switch {
	case d.Exec != nil:
		return "exec"
	case d.Container != nil:
		return "container"
	case d.Unit != "":
		return "unit"
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
	a.Registered, b.Registered = false, false
	a.Exec, b.Exec = nil, nil
	a.Container, b.Container = nil, nil
	a.UnmaskedSecrets, b.UnmaskedSecrets = nil, nil
	return reflect.DeepEqual(a, b) && slices.Equal(d.UnmaskedSecrets, o.UnmaskedSecrets) && d.Exec.equal(o.Exec) && d.Container.equal(o.Container)
}

// Env is the environment that the definition sets for the plugin.
func (d *PluginDefinition) Env() map[string]EnvValue {
	switch {
	case d.Exec != nil:
		return d.Exec.Env
	case d.Container != nil:
		return d.Container.Env
	default:
		return nil
	}
}

func (e *PluginExec) equal(o *PluginExec) bool {
	if e == nil || o == nil {
		return e == o
	}
	return slices.Equal(e.Command, o.Command) && maps.EqualFunc(e.Env, o.Env, EnvValue.equal)
}

func (c *PluginContainer) equal(o *PluginContainer) bool {
	if c == nil || o == nil {
		return c == o
	}
	return c.Runtime == o.Runtime && c.Image == o.Image && c.Pull == o.Pull &&
		slices.Equal(c.Args, o.Args) && slices.Equal(c.Mounts, o.Mounts) && maps.EqualFunc(c.Env, o.Env, EnvValue.equal)
}

func (v EnvValue) equal(o EnvValue) bool {
	if v.Secret == nil || o.Secret == nil {
		return v == o
	}
	return v.Value == o.Value && *v.Secret == *o.Secret
}
