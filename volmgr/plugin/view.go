// Package plugin describes a plugin: its definition, its answers about itself, its process, and its
// state at one moment. It decides whether the agent can send a call to the plugin.
package plugin

import (
	"fmt"
	"maps"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
)

// Info holds a plugin's answers about itself. The agent stores the answers, so that it can describe
// and undo volumes even while the plugin is down.
type Info struct {
	ID      string `json:"id"`
	Driver  string `json:"driver"` // GetPluginInfo.name
	Version string `json:"version"`
	NodeID  string `json:"node_id,omitempty"` // NodeGetInfo.node_id

	Topology   map[string]string `json:"topology,omitempty"`
	MaxVolumes int64             `json:"max_volumes,omitempty"`

	HasController bool `json:"has_controller,omitempty"`
	HasNode       bool `json:"has_node,omitempty"`

	// ControllerCaps lists capabilities by their CSI names. A capability that this agent does not
	// know appears as a number.
	ControllerCaps []string `json:"controller_caps,omitempty"`
	NodeCaps       []string `json:"node_caps,omitempty"`

	Caps Caps `json:"caps"`
}

// Caps holds the capabilities that affect the agent's decisions.
type Caps struct {
	// The following capabilities belong to the controller service or to the plugin as a whole.
	Attach                bool `json:"attach,omitempty"`          // PUBLISH_UNPUBLISH_VOLUME
	AttachReadOnly        bool `json:"attach_readonly,omitempty"` // PUBLISH_READONLY
	CreateDelete          bool `json:"create_delete,omitempty"`
	Clone                 bool `json:"clone,omitempty"`
	Expand                bool `json:"expand,omitempty"` // EXPAND_VOLUME of the controller service
	Modify                bool `json:"modify,omitempty"`
	List                  bool `json:"list,omitempty"`
	PublishedNodes        bool `json:"published_nodes,omitempty"` // LIST_VOLUMES_PUBLISHED_NODES
	Get                   bool `json:"get,omitempty"`
	Capacity              bool `json:"capacity,omitempty"`
	Snapshot              bool `json:"snapshot,omitempty"` // CREATE_DELETE_SNAPSHOT
	ListSnapshots         bool `json:"list_snapshots,omitempty"`
	GetSnapshot           bool `json:"get_snapshot,omitempty"`
	GroupSnapshot         bool `json:"group_snapshot,omitempty"` // CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT
	Health                bool `json:"health,omitempty"`         // GET_VOLUME_HEALTH of the controller service
	ListHealth            bool `json:"list_health,omitempty"`
	Condition             bool `json:"condition,omitempty"`               // VOLUME_CONDITION of the controller service, before CSI 1.13
	ControllerMultiWriter bool `json:"controller_multi_writer,omitempty"` // SINGLE_NODE_MULTI_WRITER of the controller service
	Topology              bool `json:"topology,omitempty"`                // VOLUME_ACCESSIBILITY_CONSTRAINTS
	Offline               bool `json:"offline,omitempty"`                 // VolumeExpansion.OFFLINE: the plugin expands only volumes that are not in use

	// The following capabilities belong to the node service.
	Stage           bool `json:"stage,omitempty"`             // STAGE_UNSTAGE_VOLUME
	Stats           bool `json:"stats,omitempty"`             // GET_VOLUME_STATS
	NodeExpand      bool `json:"node_expand,omitempty"`       // EXPAND_VOLUME of the node service
	NodeMultiWriter bool `json:"node_multi_writer,omitempty"` // SINGLE_NODE_MULTI_WRITER of the node service
	MountGroup      bool `json:"mount_group,omitempty"`
	NodeHealth      bool `json:"node_health,omitempty"` // GET_VOLUME_HEALTH of the node service
	StorageHealth   bool `json:"storage_health,omitempty"`
	NodeCondition   bool `json:"node_condition,omitempty"` // VOLUME_CONDITION of the node service, before CSI 1.13
}

// WithNode returns the capabilities c, but takes those of the node service from n.
func (c Caps) WithNode(n Caps) Caps {
	c.Stage, c.Stats, c.NodeExpand, c.NodeMultiWriter = n.Stage, n.Stats, n.NodeExpand, n.NodeMultiWriter
	c.MountGroup, c.NodeHealth, c.StorageHealth, c.NodeCondition = n.MountGroup, n.NodeHealth, n.StorageHealth, n.NodeCondition
	return c
}

// These are the states of a plugin and of its parts.
const (
	Stopped    = "stopped"     // not started, or stopped on purpose
	Starting   = "starting"    // started, but not yet ready
	Ready      = "ready"       // the agent can send calls
	Unhealthy  = "unhealthy"   // the plugin runs, or should run, but does not answer correctly
	BackingOff = "backing-off" // the plugin has ended, and is started again after a pause
	Failed     = "failed"      // an operator must fix a problem
)

// View is the state of a plugin at one moment, as far as decisions depend on it.
type View struct {
	// Known is set if a plugin with this id is configured.
	Known bool

	// Ready is set if all parts of the plugin accept calls now.
	Ready bool

	// Apart is set if separate parts serve the node service and the controller service. It is nil
	// if one process serves both.
	Apart *Apart

	// State is one of the states above. Reason says why the plugin is not ready.
	State  string
	Reason string

	// NoLog is set if the agent has no log of the plugin. The agent has no log if the plugin was
	// never started, or if the agent does not run the plugin.
	NoLog bool

	// Stopped is set if a person stopped the plugin. Only a person starts such a plugin again.
	Stopped bool

	// Final is set if the plugin cannot become ready until a person acts. For example, a person
	// stopped the plugin, the agent refused it, or it failed for a reason that only a person can
	// remove.
	Final bool

	// Incarnation is a number that changes when a new process begins to answer the node calls. A
	// new controller process does not change it, because a controller process does not answer node
	// calls.
	Incarnation uint64

	// Restarts counts the restarts of the plugin since the start of the agent.
	Restarts int

	// CallTimeout is the time limit of a call to the plugin's node service. 0 means that the limit
	// is unknown. A call that has exceeded the limit may still take effect during another
	// CallTimeout.
	CallTimeout time.Duration

	// ControllerTimeout is the time limit of a call to the plugin's controller service.
	ControllerTimeout time.Duration

	// Scope comes from the plugin file. It is ScopeHost, ScopeShared or empty.
	Scope string

	// Fence comes from the plugin file. If the parts of the plugin name several fences, it is the
	// strictest of them.
	Fence Fence

	// StatsInterval comes from the plugin file. It is the interval at which the agent asks the
	// plugin for the state of mounted volumes. 0 means never. If StatsInterval is nil, the agent
	// uses its own interval.
	StatsInterval *time.Duration
	Info          Info
}

// Apart holds the states of the two services of a plugin if separate parts serve them.
type Apart struct{ Node, Controller Service }

// Service is the state of one service of a plugin at one moment.
type Service struct {
	// Ready is set if at least one part of the service accepts calls now.
	Ready bool

	// Final is set if no part of the service can become ready until a person acts.
	Final bool

	// Unasked is set if the service has parts, but none of them has reported its capabilities yet.
	Unasked bool

	// Lack says why the service is not ready. It is empty if the service is ready.
	Lack string
}

// of returns the service that answers the call k.
func (a *Apart) of(k call.Method) Service {
	if k.Service() == call.Controller {
		return a.Controller
	}
	return a.Node
}

// LogRemedy returns the remedy that shows the plugin's log. If the plugin has no log, the remedy
// shows the plugin's status.
func (v View) LogRemedy(id string) remedy.Remedy {
	if v.NoLog {
		return remedy.Of(remedy.ShowPlugin, id)
	}
	return remedy.Of(remedy.ShowPluginLog, id)
}

// Remedy returns the remedy that makes the plugin ready.
func (v View) Remedy(id string) remedy.Remedy {
	if v.Stopped {
		return remedy.Of(remedy.StartPlugin, id)
	}
	return remedy.Of(remedy.ShowPlugin, id)
}

// newsOfRestarts is the number of restarts that the agent reports with separate texts. All later
// restarts have the same text, so the event log only counts them.
const newsOfRestarts = 100

// News describes the state that a plugin has just entered.
func (v View) News() string {
	switch {
	case v.Reason != "" && v.Reason != v.State:
		return v.State + ": " + v.Reason
	case !v.Ready || v.Restarts == 0:
		return v.State
	case v.Restarts > newsOfRestarts:
		return v.State + ": restarted again"
	default:
		// The number makes each text unique, so that the event log shows each restart separately.
		return fmt.Sprintf("%s: restart %d since the agent was started", v.State, v.Restarts)
	}
}

// ReadyFor reports whether the agent can send the call k now.
func (v View) ReadyFor(k call.Method) bool {
	if v.Apart != nil {
		return v.Apart.of(k).Ready
	}
	return v.Ready
}

// Lacks says why the agent cannot send the call k now.
func (v View) Lacks(id string, k call.Method) string {
	if v.Apart != nil {
		return v.Apart.of(k).Lack
	}
	return fmt.Sprintf("plugin %q is %s", id, v.describe())
}

// FinalFor reports whether the agent cannot send the call k until a person acts.
func (v View) FinalFor(k call.Method) bool {
	if v.Apart != nil {
		service := v.Apart.of(k)
		return !service.Ready && service.Final
	}
	return !v.Ready && v.Final
}

// Unasked reports whether the agent does not know the capabilities of the service that answers the
// call k.
func (v View) Unasked(k call.Method) bool { return v.Apart != nil && v.Apart.of(k).Unasked }

// LacksController reports whether the plugin of this host has answered, and has no controller part. A
// plugin that has not answered yet may have one.
func (v View) LacksController() bool {
	return v.Known && v.Info.Driver != "" && !v.Info.HasController
}

// Barred returns a view of the plugin in which calls are forbidden for the given reason.
func (v View) Barred(reason string) View {
	v.Ready, v.Apart, v.Reason = false, nil, reason
	return v
}

// describe says why a plugin is not ready.
func (v View) describe() string {
	switch {
	case !v.Known:
		return "not configured"
	case v.Reason != "":
		return v.State + ": " + v.Reason
	default:
		return v.State
	}
}

// DefaultTopology returns the topology of a CreateVolume call if the user requested no topology. It
// contains this host's segments as requisite and as preferred, so that this host can mount the
// volume. It is empty if the plugin lacks VOLUME_ACCESSIBILITY_CONSTRAINTS, or if its node part
// reports no segments.
func (p Info) DefaultTopology() call.TopologyRequest {
	if !p.Caps.Topology || len(p.Topology) == 0 {
		return call.TopologyRequest{}
	}
	here := []map[string]string{maps.Clone(p.Topology)}
	return call.TopologyRequest{Required: here, Preferred: here}
}
