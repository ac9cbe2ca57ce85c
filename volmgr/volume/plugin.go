package volume

import (
	"fmt"
	"maps"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
)

// PluginInfo holds a plugin's answers about itself. It is stored, so that the volumes of a plugin
// that is down can still be described and undone.
type PluginInfo struct {
	ID      string `json:"id"`
	Driver  string `json:"driver"` // GetPluginInfo.name
	Version string `json:"version"`
	NodeID  string `json:"node_id,omitempty"` // NodeGetInfo.node_id

	Topology   map[string]string `json:"topology,omitempty"`
	MaxVolumes int64             `json:"max_volumes,omitempty"`

	HasController bool `json:"has_controller,omitempty"`
	HasNode       bool `json:"has_node,omitempty"`

	// Capabilities by CSI name, or by number if this agent does not know the name.
	ControllerCaps []string `json:"controller_caps,omitempty"`
	NodeCaps       []string `json:"node_caps,omitempty"`

	Caps Caps `json:"caps"`
}

// Caps are the capabilities that affect decisions in this package.
type Caps struct {
	// Capabilities of the controller service and of the plugin as a whole.
	Attach                bool `json:"attach,omitempty"`          // PUBLISH_UNPUBLISH_VOLUME
	AttachReadOnly        bool `json:"attach_readonly,omitempty"` // PUBLISH_READONLY
	CreateDelete          bool `json:"create_delete,omitempty"`
	Clone                 bool `json:"clone,omitempty"`
	Expand                bool `json:"expand,omitempty"` // EXPAND_VOLUME of the controller
	Modify                bool `json:"modify,omitempty"`
	List                  bool `json:"list,omitempty"`
	PublishedNodes        bool `json:"published_nodes,omitempty"` // LIST_VOLUMES_PUBLISHED_NODES
	Get                   bool `json:"get,omitempty"`
	Capacity              bool `json:"capacity,omitempty"`
	Snapshot              bool `json:"snapshot,omitempty"` // CREATE_DELETE_SNAPSHOT
	ListSnapshots         bool `json:"list_snapshots,omitempty"`
	GetSnapshot           bool `json:"get_snapshot,omitempty"`
	GroupSnapshot         bool `json:"group_snapshot,omitempty"` // CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT
	Health                bool `json:"health,omitempty"`         // GET_VOLUME_HEALTH of the controller
	ListHealth            bool `json:"list_health,omitempty"`
	Condition             bool `json:"condition,omitempty"`               // VOLUME_CONDITION of the controller, before CSI 1.13
	ControllerMultiWriter bool `json:"controller_multi_writer,omitempty"` // SINGLE_NODE_MULTI_WRITER of the controller
	Topology              bool `json:"topology,omitempty"`                // VOLUME_ACCESSIBILITY_CONSTRAINTS
	Offline               bool `json:"offline,omitempty"`                 // VolumeExpansion is OFFLINE: only volumes that are not in use

	// Capabilities of the node service.
	Stage           bool `json:"stage,omitempty"`             // STAGE_UNSTAGE_VOLUME
	Stats           bool `json:"stats,omitempty"`             // GET_VOLUME_STATS
	NodeExpand      bool `json:"node_expand,omitempty"`       // EXPAND_VOLUME of the node
	NodeMultiWriter bool `json:"node_multi_writer,omitempty"` // SINGLE_NODE_MULTI_WRITER of the node
	MountGroup      bool `json:"mount_group,omitempty"`
	NodeHealth      bool `json:"node_health,omitempty"` // GET_VOLUME_HEALTH of the node
	StorageHealth   bool `json:"storage_health,omitempty"`
	NodeCondition   bool `json:"node_condition,omitempty"` // VOLUME_CONDITION of the node, before CSI 1.13
}

// WithNode returns the capabilities, with those of the node service taken from n.
func (c Caps) WithNode(n Caps) Caps {
	c.Stage, c.Stats, c.NodeExpand, c.NodeMultiWriter = n.Stage, n.Stats, n.NodeExpand, n.NodeMultiWriter
	c.MountGroup, c.NodeHealth, c.StorageHealth, c.NodeCondition = n.MountGroup, n.NodeHealth, n.StorageHealth, n.NodeCondition
	return c
}

// PluginView is the state of a plugin at one moment, as decisions need it.
type PluginView struct {
	// Known is false if no plugin with that id is configured.
	Known bool

	// Ready means that all parts of the plugin accept calls now.
	Ready bool

	// Apart is set if the node service and the controller service have separate parts. If it is
	// nil, one process serves both.
	Apart *Apart

	// State is the supervisor's word for the state. Reason says why the plugin is not ready.
	State  string
	Reason string

	// NoLog means that the agent has no log of the plugin. The plugin was never started, or the
	// agent does not run it.
	NoLog bool

	// Stopped means that a person stopped the plugin and must start it again.
	Stopped bool

	// Final means that the plugin does not become ready by itself. It was stopped on purpose,
	// refused, or failed for a reason that a person must remove.
	Final bool

	// Incarnation changes whenever another process answers the node calls. A new controller process
	// does not change it, because it says nothing about node calls.
	Incarnation uint64

	// Restarts is the number of times that the plugin was restarted since the agent was started.
	Restarts int

	// CallTimeout is the deadline of a call to the plugin's node service; 0 is unknown. A call that
	// exceeded its deadline may have an effect for as long again.
	CallTimeout time.Duration

	// ControllerTimeout is the same for the controller service.
	ControllerTimeout time.Duration

	// StatsInterval is the interval, from the plugin file, between requests for the state of
	// mounted volumes. 0 means never, and nil leaves the interval to the agent.
	StatsInterval *time.Duration
	Info          PluginInfo
}

// Apart is the state of a plugin whose services have separate parts.
type Apart struct{ Node, Controller Service }

// Service is the state of one service at one moment.
type Service struct {
	// Ready means that the service accepts calls now. One of its parts is enough for that.
	Ready bool

	// Final means that none of its parts becomes ready by itself.
	Final bool

	// Unasked means that the service has parts, but none has ever reported its capabilities.
	Unasked bool

	// Lack says why the service is not ready.
	Lack string
}

// of returns the service that a step calls.
func (a *Apart) of(k call.Method) Service {
	if k.Service() == call.Controller {
		return a.Controller
	}
	return a.Node
}

// LogRemedy returns the remedy that shows the plugin's log, or its status if there is no log.
func (v PluginView) LogRemedy(id string) remedy.Remedy {
	if v.NoLog {
		return remedy.Of(remedy.ShowPlugin, id)
	}
	return remedy.Of(remedy.ShowPluginLog, id)
}

// Remedy returns the remedy for a plugin that is not ready.
func (v PluginView) Remedy(id string) remedy.Remedy {
	if v.Stopped {
		return remedy.Of(remedy.StartPlugin, id)
	}
	return remedy.Of(remedy.ShowPlugin, id)
}

// newsOfRestarts is the number of restarts that are reported one by one. Later restarts share one
// text, so that they are reported as a count.
const newsOfRestarts = 100

// News describes the state that the plugin has just entered.
func (v PluginView) News() string {
	switch {
	case v.Reason != "" && v.Reason != v.State:
		return v.State + ": " + v.Reason
	case !v.Ready || v.Restarts == 0:
		return v.State
	case v.Restarts > newsOfRestarts:
		return v.State + ": restarted again"
	default:
		// The number makes each text unique, so that each restart is reported.
		return fmt.Sprintf("%s: restart %d since the agent was started", v.State, v.Restarts)
	}
}

// ReadyFor reports whether the call of a step can be sent now.
func (v PluginView) ReadyFor(k call.Method) bool {
	if v.Apart != nil {
		return v.Apart.of(k).Ready
	}
	return v.Ready
}

// Lacks says why the call of a step cannot be sent now.
func (v PluginView) Lacks(id string, k call.Method) string {
	if v.Apart != nil {
		return v.Apart.of(k).Lack
	}
	return fmt.Sprintf("plugin %q is %s", id, v.describe())
}

// FinalFor reports whether the call of a step cannot be sent until a person acts.
func (v PluginView) FinalFor(k call.Method) bool {
	if v.Apart != nil {
		service := v.Apart.of(k)
		return !service.Ready && service.Final
	}
	return !v.Ready && v.Final
}

// unasked reports whether the capabilities of the service that k calls are still unknown.
func (v PluginView) unasked(k call.Method) bool { return v.Apart != nil && v.Apart.of(k).Unasked }

// Barred returns the view of a plugin that must not receive calls, with the reason.
func (v PluginView) Barred(reason string) PluginView {
	v.Ready, v.Apart, v.Reason = false, nil, reason
	return v
}

// describe says why a plugin is not ready.
func (v PluginView) describe() string {
	switch {
	case !v.Known:
		return "not configured"
	case v.Reason != "":
		return v.State + ": " + v.Reason
	default:
		return v.State
	}
}

// DefaultTopology returns the topology of a CreateVolume call for a request without a topology. It
// has this host's segments as requisite and as preferred, so that the volume can be mounted here.
// It is empty for a plugin without VOLUME_ACCESSIBILITY_CONSTRAINTS, and for one whose node part
// names no segments.
func (p PluginInfo) DefaultTopology() call.TopologyRequest {
	if !p.Caps.Topology || len(p.Topology) == 0 {
		return call.TopologyRequest{}
	}
	here := []map[string]string{maps.Clone(p.Topology)}
	return call.TopologyRequest{Required: here, Preferred: here}
}
