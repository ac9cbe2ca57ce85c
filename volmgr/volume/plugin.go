package volume

import (
	"fmt"
	"time"
)

// PluginInfo is what a plugin says of itself. It is persisted, so that a
// volume of a plugin that is down can still be described and undone.
type PluginInfo struct {
	ID      string `json:"id"`
	Driver  string `json:"driver"` // GetPluginInfo.name
	Version string `json:"version"`
	NodeID  string `json:"node_id,omitempty"` // NodeGetInfo.node_id

	Topology   map[string]string `json:"topology,omitempty"`
	MaxVolumes int64             `json:"max_volumes,omitempty"`

	HasController bool `json:"has_controller,omitempty"`
	HasNode       bool `json:"has_node,omitempty"`

	// Capabilities by CSI name; one that this agent does not know is its number.
	ControllerCaps []string `json:"controller_caps,omitempty"`
	NodeCaps       []string `json:"node_caps,omitempty"`

	Caps Caps `json:"caps"`
}

// Caps are the capabilities that decisions here rest on.
type Caps struct {
	// Of the controller service, and of what the plugin says of itself as a whole.
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
	Offline               bool `json:"offline,omitempty"`                 // VolumeExpansion is OFFLINE: only while not in use

	// Of the node service.
	Stage           bool `json:"stage,omitempty"`             // STAGE_UNSTAGE_VOLUME
	Stats           bool `json:"stats,omitempty"`             // GET_VOLUME_STATS
	NodeExpand      bool `json:"node_expand,omitempty"`       // EXPAND_VOLUME of the node
	NodeMultiWriter bool `json:"node_multi_writer,omitempty"` // SINGLE_NODE_MULTI_WRITER of the node
	MountGroup      bool `json:"mount_group,omitempty"`
	NodeHealth      bool `json:"node_health,omitempty"` // GET_VOLUME_HEALTH of the node
	StorageHealth   bool `json:"storage_health,omitempty"`
	NodeCondition   bool `json:"node_condition,omitempty"` // VOLUME_CONDITION of the node, before CSI 1.13
}

// WithNode returns the capabilities with those of the node service taken from
// another plugin's part.
func (c Caps) WithNode(n Caps) Caps {
	c.Stage, c.Stats, c.NodeExpand, c.NodeMultiWriter = n.Stage, n.Stats, n.NodeExpand, n.NodeMultiWriter
	c.MountGroup, c.NodeHealth, c.StorageHealth, c.NodeCondition = n.MountGroup, n.NodeHealth, n.StorageHealth, n.NodeCondition
	return c
}

// PluginView is a plugin at one moment, as decisions see it.
type PluginView struct {
	// Known is false where no plugin of that id is configured.
	Known bool
	// Ready means that calls can be sent now, to all of it.
	Ready bool
	// Apart is set where the two services are served by parts of their own; else
	// one process serves whatever there is.
	Apart *Apart
	// State is the supervisor's word for it, Reason says why it is not ready.
	State  string
	Reason string
	// NoLog means that the agent has no log of it: it was never started, or somebody
	// else runs it.
	NoLog bool
	// Stopped means that it was stopped on purpose, and waits for a person.
	Stopped bool
	// Final means that it does not become ready by itself: it was stopped on purpose,
	// refused, or failed for a reason that a person must remove.
	Final bool
	// Incarnation changes whenever the process does that answers node calls. It
	// is theirs alone: another one of a controller proves nothing about them.
	Incarnation uint64
	// Restarts is how often it was started again since the agent runs.
	Restarts int
	// CallTimeout is the deadline of a call to the plugin's node service; 0 if
	// it is not known. A call that ran into it may have an effect that much later.
	CallTimeout time.Duration
	// ControllerTimeout is the same of its controller service.
	ControllerTimeout time.Duration
	// StatsInterval is how often its plugin file says that the plugin is asked how mounted volumes
	// are; 0 is never, nil leaves it to the agent.
	StatsInterval *time.Duration
	Info          PluginInfo
}

// Apart is a plugin whose services have parts of their own.
type Apart struct{ Node, Controller Service }

// Service is one of them at one moment.
type Service struct {
	// Ready means that calls to it can be sent now; any one of its parts is enough.
	Ready bool
	// Final means that none of its parts becomes ready by itself.
	Final bool
	// Unasked means that it has parts, and none has ever said what it can do.
	Unasked bool
	// Lack says in words why it is not ready.
	Lack string
}

// of is the service that a step calls.
func (a *Apart) of(k Kind) Service {
	if k.Controller() {
		return a.Controller
	}
	return a.Node
}

// uses adds the sides that the plugin has to those that a volume uses already.
func (i PluginInfo) uses(have Uses) Uses {
	return Uses{Attach: have.Attach || i.Caps.Attach, Stage: have.Stage || i.Caps.Stage}
}

// LogCommand is the command that shows what the plugin wrote, or what is known of it
// where there is no log.
func (v PluginView) LogCommand(id string) string {
	if v.NoLog {
		return Command("volctl plugin status %s", id)
	}
	return Command("volctl plugin logs %s", id)
}

// Remedy is the command that helps with a plugin that is not ready.
func (v PluginView) Remedy(id string) string {
	if v.Stopped {
		return Command("volctl plugin start %s", id)
	}
	return Command("volctl plugin status %s", id)
}

// newsOfRestarts is up to which restart each is told in words of its own. One
// that has fallen so often is told with the others, as a count.
const newsOfRestarts = 100

// News tells of the state in which a plugin just came.
func (v PluginView) News() string {
	switch {
	case v.Reason != "" && v.Reason != v.State:
		return v.State + ": " + v.Reason
	case !v.Ready || v.Restarts == 0:
		return v.State
	case v.Restarts > newsOfRestarts:
		return v.State + ": restarted again"
	default:
		// No two are the same, so each is told.
		return fmt.Sprintf("%s: restart %d since the agent was started", v.State, v.Restarts)
	}
}

// ReadyFor reports whether the call can be sent now that a step makes.
func (v PluginView) ReadyFor(k Kind) bool {
	if v.Apart != nil {
		return v.Apart.of(k).Ready
	}
	return v.Ready
}

// Lacks says why the call of a step cannot be sent now.
func (v PluginView) Lacks(id string, k Kind) string {
	if v.Apart != nil {
		return v.Apart.of(k).Lack
	}
	return fmt.Sprintf("plugin %q is %s", id, v.describe())
}

// FinalFor reports whether the call of a step cannot be sent until a person does
// something.
func (v PluginView) FinalFor(k Kind) bool {
	if v.Apart != nil {
		service := v.Apart.of(k)
		return !service.Ready && service.Final
	}
	return !v.Ready && v.Final
}

// FinalLack is Lack where waiting alone cannot help; else it is empty.
func (v PluginView) FinalLack(r Record) string {
	attaches := v.Info.Caps.Attach || r.Node.Uses.Attach
	switch {
	case v.FinalFor(NodePublish):
		return v.Lacks(r.Volume.PluginID, NodePublish)
	case attaches && v.FinalFor(ControllerPublish):
		return v.Lacks(r.Volume.PluginID, ControllerPublish)
	default:
		return ""
	}
}

// unasked reports whether nobody knows yet what the service of a call can do.
func (v PluginView) unasked(k Kind) bool { return v.Apart != nil && v.Apart.of(k).Unasked }

// Lack says which call that a volume may need cannot be sent now, and is empty
// if there is none.
func (v PluginView) Lack(r Record) string {
	switch {
	case !v.ReadyFor(NodePublish):
		return v.Lacks(r.Volume.PluginID, NodePublish)
	case (v.Info.Caps.Attach || r.Node.Uses.Attach || v.unasked(ControllerPublish)) && !v.ReadyFor(ControllerPublish):
		return v.Lacks(r.Volume.PluginID, ControllerPublish)
	default:
		return ""
	}
}

// Barred is the view of a plugin that must get no call, for a reason.
func (v PluginView) Barred(reason string) PluginView {
	v.Ready, v.Apart, v.Reason = false, nil, reason
	return v
}

// describe says what is wrong with a plugin that is not ready.
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
