package plugin

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
)

// Record holds the data about a plugin that the agent keeps across a restart: the plugin's answers
// about itself, its process, and the definition of that process.
type Record struct {
	// ID is the key of the record. A plugin with several parts has one record for each part. For
	// the first part, ID is the plugin's id. For every other part, ID is a key of its own, and
	// Plugin is the plugin's id.
	ID     string `json:"id"`
	Plugin string `json:"plugin,omitempty"`

	// Info holds the plugin's last answers. The agent keeps them after the definition is removed.
	// If a user later gives the same id to another driver, the agent can notice the difference.
	Info    Info    `json:"info"`
	Process Process `json:"process,omitzero"`

	// Definition is the definition that the plugin uses now. It is nil if the plugin has no
	// definition.
	Definition *Definition `json:"definition,omitempty"`

	// Stopped is set if a person stopped the plugin. The agent does not start such a plugin until a
	// person requests a start.
	Stopped bool `json:"stopped,omitempty"`

	// Scratch describes the objects that a test of the plugin may have left behind. It is nil if
	// the test left no objects.
	Scratch *Scratch `json:"scratch,omitempty"`
}

// Of returns the id of the plugin to which the record belongs.
func (r Record) Of() string {
	if r.Plugin != "" {
		return r.Plugin
	}
	return r.ID
}

// Empty reports whether the record belongs to an additional part of a plugin and no longer has a
// definition.
func (r Record) Empty() bool { return r.Plugin != "" && r.Definition == nil }

// Process identifies one process uniquely. The agent stores the nonce before it starts the process,
// and the other fields afterwards. A nonce without a PID therefore means that the process or
// container may exist. A process has the nonce in its environment, and a container has it as a
// label.
type Process struct {
	Nonce     string `json:"nonce,omitempty"`
	PID       int    `json:"pid,omitempty"`
	StartTime uint64 `json:"start_time,omitempty"` // field 22 of /proc/PID/stat, in clock ticks since boot
	Boot      string `json:"boot,omitempty"`       // boot id of the host
	Container string `json:"container,omitempty"`  // id of the container if the process is its main process; otherwise empty
}

// Definition is the content of a plugin file. Defaults are filled in, but variables are not
// expanded yet. Exactly one of Exec, Container, Unit, Socket and Builtin is set.
type Definition struct {
	ID       string `json:"id"`
	Type     string `json:"type,omitempty"` // node, controller or monolith; if empty, the agent asks the plugin
	Instance string `json:"instance,omitempty"`

	Exec      *Exec      `json:"exec,omitempty"`
	Container *Container `json:"container,omitempty"`
	Unit      string     `json:"unit,omitempty"` // a systemd unit that the agent starts and watches
	Socket    string     `json:"socket,omitempty"`
	Builtin   string     `json:"builtin,omitempty"`

	ProbeInterval     time.Duration `json:"probe_interval"`
	ProbeTimeout      time.Duration `json:"probe_timeout"`
	StartTimeout      time.Duration `json:"start_timeout"`
	NodeTimeout       time.Duration `json:"node_timeout"`
	ControllerTimeout time.Duration `json:"controller_timeout"`
	MaxInFlight       int           `json:"max_in_flight"`
	OnChange          string        `json:"on_change"` // OnChangePending or OnChangeRestart

	// Scope is ScopeHost, ScopeShared or empty.
	Scope string `json:"scope,omitempty"`

	// Fence names the proof that a lost host no longer writes.
	Fence Fence `json:"fence,omitempty"`

	// StatsInterval is the interval at which the agent asks the plugin for the state of mounted
	// volumes. 0 means never. If StatsInterval is nil, the agent uses its own interval.
	StatsInterval *time.Duration `json:"stats_interval,omitempty"`

	// UnmaskedSecrets lists the keys of secrets whose values are only names. The agent does not
	// mask such values in the plugin's messages.
	UnmaskedSecrets []string `json:"unmasked_secrets,omitempty"`

	// Disabled is set if the plugin file has enabled: false. The agent treats such a file as if it did
	// not exist, except that it shows the plugin as disabled.
	Disabled bool `json:"disabled,omitempty"`

	// File is the path of the plugin file. It is empty for a registered plugin and for the bundled
	// driver.
	File string `json:"file,omitempty"`

	// Registered is set if a user registered the definition at run time, without a plugin file.
	Registered bool `json:"registered,omitempty"`
}

// These are the values of Definition.Scope. Without a scope, each volume chooses its own.
const (
	ScopeHost   = "host"   // the storage belongs to one host, so no volume is shared
	ScopeShared = "shared" // a volume without a scope is shared by the hosts of the cluster
)

// These values say what the agent does if a plugin file changes while volumes are staged through
// the plugin.
const (
	OnChangePending = "pending" // the change takes effect after these volumes are unstaged
	OnChangeRestart = "restart" // the agent restarts the plugin even if volumes are staged
)

// Exec describes a command that the agent runs as the plugin.
type Exec struct {
	Command []string            `json:"command"`
	Env     map[string]EnvValue `json:"env,omitempty"`
}

// Container describes a container that the agent runs as the plugin.
type Container struct {
	Runtime string `json:"runtime"` // RuntimePodman or RuntimeDocker
	Image   string `json:"image"`
	// Entrypoint replaces the image's entrypoint, unless it is empty.
	Entrypoint string              `json:"entrypoint,omitempty"`
	Args       []string            `json:"args,omitempty"` // arguments that follow the image's entrypoint
	Env        map[string]EnvValue `json:"env,omitempty"`
	Mounts     []string            `json:"mounts,omitempty"` // SOURCE:TARGET[:OPTIONS], in addition to the mounts that every plugin gets
	Pull       string              `json:"pull"`             // PullNever or PullMissing
}

// These are the container runtimes, and the policies for a missing image.
const (
	RuntimePodman = "podman"
	RuntimeDocker = "docker"
	PullNever     = "never"
	PullMissing   = "missing"
)

// EnvValue is the value of an environment variable, or a reference to the source of the value.
type EnvValue struct {
	Value  string          `json:"value,omitempty"`
	Secret *call.SecretRef `json:"secret,omitempty"`
}

// Runner returns how the agent runs the plugin: exec, container, unit, socket or builtin.
func (d *Definition) Runner() string {
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

// Equal reports whether both definitions have the same effect. It ignores where the definitions
// come from.
func (d *Definition) Equal(o *Definition) bool {
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

// Env returns the environment variables that the definition sets for the plugin.
func (d *Definition) Env() map[string]EnvValue {
	switch {
	case d.Exec != nil:
		return d.Exec.Env
	case d.Container != nil:
		return d.Container.Env
	default:
		return nil
	}
}

func (e *Exec) equal(o *Exec) bool {
	if e == nil || o == nil {
		return e == o
	}
	return slices.Equal(e.Command, o.Command) && maps.EqualFunc(e.Env, o.Env, EnvValue.equal)
}

func (c *Container) equal(o *Container) bool {
	if c == nil || o == nil {
		return c == o
	}
	return c.Runtime == o.Runtime && c.Image == o.Image && c.Entrypoint == o.Entrypoint && c.Pull == o.Pull &&
		slices.Equal(c.Args, o.Args) && slices.Equal(c.Mounts, o.Mounts) && maps.EqualFunc(c.Env, o.Env, EnvValue.equal)
}

func (v EnvValue) equal(o EnvValue) bool {
	if v.Secret == nil || o.Secret == nil {
		return v == o
	}
	return v.Value == o.Value && *v.Secret == *o.Secret
}
