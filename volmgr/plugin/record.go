package plugin

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
)

// Record holds the data about a plugin that the agent keeps over a restart. It contains the
// plugin's answers about itself, its process, and the definition of that process.
type Record struct {
	// ID is the plugin's id and the key of the record. A plugin with several parts has one record
	// for each part. The record of a further part has its own key and names the plugin in Plugin.
	ID     string `json:"id"`
	Plugin string `json:"plugin,omitempty"`

	// Info holds the plugin's last answers. The agent keeps them after the definition is removed.
	// It then notices if a user gives the id to another driver.
	Info    Info    `json:"info"`
	Process Process `json:"process,omitzero"`

	// Definition is the definition in use. It is nil if the plugin has none.
	Definition *Definition `json:"definition,omitempty"`

	// Stopped is set if a person stopped the plugin. The agent does not start such a plugin until a
	// person asks for it.
	Stopped bool `json:"stopped,omitempty"`

	// Scratch describes the possible leftovers of a plugin test. It is nil if the test left
	// nothing.
	Scratch *Scratch `json:"scratch,omitempty"`
}

// Of returns the id of the plugin to which the record belongs.
func (r Record) Of() string {
	if r.Plugin != "" {
		return r.Plugin
	}
	return r.ID
}

// Empty reports whether the record belongs to a further part and has no definition any more.
func (r Record) Empty() bool { return r.Plugin != "" && r.Definition == nil }

// Process identifies one process uniquely. The agent stores the nonce before it forks, and
// the other fields after that. A nonce without a PID therefore means that the process or container
// may exist. A process has the nonce in its environment, and a container has it as a label.
type Process struct {
	Nonce     string `json:"nonce,omitempty"`
	PID       int    `json:"pid,omitempty"`
	StartTime uint64 `json:"start_time,omitempty"` // field 22 of /proc/PID/stat, clock ticks since boot
	Boot      string `json:"boot,omitempty"`       // boot id
	Container string `json:"container,omitempty"`  // id of the container whose main process this is; empty if it runs in no container
}

// Definition is the content of a plugin file, with defaults filled in and variables not yet
// expanded. Exactly one of Exec, Container, Unit, Socket and Builtin is set.
type Definition struct {
	ID       string `json:"id"`
	Type     string `json:"type,omitempty"` // node, controller or monolith; if it is empty, the agent asks the plugin
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

	// StatsInterval is the interval between requests for the state of mounted volumes. 0 means
	// never. If it is nil, the agent uses its own interval.
	StatsInterval *time.Duration `json:"stats_interval,omitempty"`

	// UnmaskedSecrets lists the keys of secrets whose values are only names. The agent does not
	// mask these values in the plugin's messages.
	UnmaskedSecrets []string `json:"unmasked_secrets,omitempty"`

	// File is the path of the plugin file. It is empty for a registered plugin and for the bundled
	// driver.
	File string `json:"file,omitempty"`

	// Registered is set if a user registered the definition at run time. Such a definition is in no
	// file.
	Registered bool `json:"registered,omitempty"`
}

// These values control the effect of a changed plugin file while volumes are staged through the
// plugin.
const (
	OnChangePending = "pending" // the change has no effect until these volumes are unstaged
	OnChangeRestart = "restart" // the agent restarts the plugin even if volumes are staged
)

// Exec is a command that the agent runs.
type Exec struct {
	Command []string            `json:"command"`
	Env     map[string]EnvValue `json:"env,omitempty"`
}

// Container is a container that the agent runs with a container runtime.
type Container struct {
	Runtime string              `json:"runtime"` // RuntimePodman or RuntimeDocker
	Image   string              `json:"image"`
	Args    []string            `json:"args,omitempty"` // appended to the image's entrypoint
	Env     map[string]EnvValue `json:"env,omitempty"`
	Mounts  []string            `json:"mounts,omitempty"` // SOURCE:TARGET[:OPTIONS], in addition to the mounts that every plugin gets
	Pull    string              `json:"pull"`             // PullNever or PullMissing
}

// These are the container runtimes, and the policies for a missing image.
const (
	RuntimePodman = "podman"
	RuntimeDocker = "docker"
	PullNever     = "never"
	PullMissing   = "missing"
)

// EnvValue is the value of an environment variable, or a reference to the source of that value.
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

// Equal reports whether both definitions describe the same plugin. It ignores their origin.
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
	return c.Runtime == o.Runtime && c.Image == o.Image && c.Pull == o.Pull &&
		slices.Equal(c.Args, o.Args) && slices.Equal(c.Mounts, o.Mounts) && maps.EqualFunc(c.Env, o.Env, EnvValue.equal)
}

func (v EnvValue) equal(o EnvValue) bool {
	if v.Secret == nil || o.Secret == nil {
		return v == o
	}
	return v.Value == o.Value && *v.Secret == *o.Secret
}
