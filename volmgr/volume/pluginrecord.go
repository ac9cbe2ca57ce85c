package volume

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
)

// PluginRecord is everything that is kept of a plugin over a restart of the agent. It holds the
// plugin's answers about itself, its process, and the definition that the process was started with.
type PluginRecord struct {
	// ID is the plugin's id and the key of the record. A plugin with several parts has a record for
	// each. The records of the further parts have their own keys and name their plugin.
	ID     string `json:"id"`
	Plugin string `json:"plugin,omitempty"`

	// Info holds the plugin's last answers. It outlives the definition, so that the agent notices
	// if an id is given to another driver.
	Info    PluginInfo    `json:"info"`
	Process PluginProcess `json:"process,omitzero"`

	// Definition is the definition in use. It is nil if there is none.
	Definition *PluginDefinition `json:"definition,omitempty"`

	// Stopped is set while the plugin is stopped on purpose. No agent starts it before a person
	// asks for that.
	Stopped bool `json:"stopped,omitempty"`

	// Scratch describes the possible leftovers of a plugin test. It is nil if there are none.
	Scratch *Scratch `json:"scratch,omitempty"`
}

// Of returns the id of the plugin that the record belongs to.
func (r PluginRecord) Of() string {
	if r.Plugin != "" {
		return r.Plugin
	}
	return r.ID
}

// Empty reports whether the record belongs to a further part that no longer has a definition.
func (r PluginRecord) Empty() bool { return r.Plugin != "" && r.Definition == nil }

// PluginProcess identifies one process uniquely. The nonce is stored before the fork, and the other
// fields after it. A nonce without a PID therefore means that there may be such a process, with the
// nonce in its environment, or such a container, with the nonce as a label.
type PluginProcess struct {
	Nonce     string `json:"nonce,omitempty"`
	PID       int    `json:"pid,omitempty"`
	StartTime uint64 `json:"start_time,omitempty"` // field 22 of /proc/PID/stat, clock ticks since boot
	Boot      string `json:"boot,omitempty"`       // boot id
	Container string `json:"container,omitempty"`  // id of the container whose main process this is
}

// PluginDefinition is a plugin file with its defaults filled in and its variables not yet expanded.
// Exactly one of Exec, Container, Unit, Socket and Builtin is set.
type PluginDefinition struct {
	ID       string `json:"id"`
	Type     string `json:"type,omitempty"` // node, controller or monolith; if it is empty, the plugin is asked
	Instance string `json:"instance,omitempty"`

	Exec      *PluginExec      `json:"exec,omitempty"`
	Container *PluginContainer `json:"container,omitempty"`
	Unit      string           `json:"unit,omitempty"` // a systemd unit that the agent starts and watches
	Socket    string           `json:"socket,omitempty"`
	Builtin   string           `json:"builtin,omitempty"`

	ProbeInterval     time.Duration `json:"probe_interval"`
	ProbeTimeout      time.Duration `json:"probe_timeout"`
	StartTimeout      time.Duration `json:"start_timeout"`
	NodeTimeout       time.Duration `json:"node_timeout"`
	ControllerTimeout time.Duration `json:"controller_timeout"`
	MaxInFlight       int           `json:"max_in_flight"`
	OnChange          string        `json:"on_change"` // OnChangePending or OnChangeRestart

	// StatsInterval is the interval between requests for the state of mounted volumes. 0 means
	// never, and nil means the interval of the agent.
	StatsInterval *time.Duration `json:"stats_interval,omitempty"`

	// UnmaskedSecrets are the keys of secrets whose values are only names. These values are not
	// masked in the plugin's messages.
	UnmaskedSecrets []string `json:"unmasked_secrets,omitempty"`

	// File is the path of the plugin file. It is empty for the plugin that needs no file, and for
	// registered plugins.
	File string `json:"file,omitempty"`

	// Registered is set if the definition was registered at run time and is in no file.
	Registered bool `json:"registered,omitempty"`
}

// The effects of a changed plugin file while volumes are staged through the plugin.
const (
	OnChangePending = "pending" // no effect until these volumes are unstaged
	OnChangeRestart = "restart" // the plugin is restarted although they are staged
)

// PluginExec is a command that the agent runs.
type PluginExec struct {
	Command []string            `json:"command"`
	Env     map[string]EnvValue `json:"env,omitempty"`
}

// PluginContainer is a container that the agent runs through a container runtime.
type PluginContainer struct {
	Runtime string              `json:"runtime"` // RuntimePodman or RuntimeDocker
	Image   string              `json:"image"`
	Args    []string            `json:"args,omitempty"` // appended to the image's entrypoint
	Env     map[string]EnvValue `json:"env,omitempty"`
	Mounts  []string            `json:"mounts,omitempty"` // SOURCE:TARGET[:OPTIONS], in addition to the mounts that every plugin gets
	Pull    string              `json:"pull"`             // PullNever or PullMissing
}

// The container runtimes, and the policies for an image that is missing.
const (
	RuntimePodman = "podman"
	RuntimeDocker = "docker"
	PullNever     = "never"
	PullMissing   = "missing"
)

// EnvValue is the value of an environment variable, or the source of the value.
type EnvValue struct {
	Value  string          `json:"value,omitempty"`
	Secret *call.SecretRef `json:"secret,omitempty"`
}

// Runner returns the way in which the plugin is run: exec, container, unit, socket or builtin.
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

// Equal reports whether both define the same plugin. It does not compare where they come from.
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

// Env returns the environment that the definition sets for the plugin.
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
