package volume

import "time"

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
	Attach                bool `json:"attach,omitempty"`          // controller PUBLISH_UNPUBLISH_VOLUME
	AttachReadOnly        bool `json:"attach_readonly,omitempty"` // controller PUBLISH_READONLY
	CreateDelete          bool `json:"create_delete,omitempty"`
	Stage                 bool `json:"stage,omitempty"`                   // node STAGE_UNSTAGE_VOLUME
	Stats                 bool `json:"stats,omitempty"`                   // node GET_VOLUME_STATS
	ControllerMultiWriter bool `json:"controller_multi_writer,omitempty"` // SINGLE_NODE_MULTI_WRITER of the controller
	NodeMultiWriter       bool `json:"node_multi_writer,omitempty"`       // and of the node
}

// PluginView is a plugin at one moment, as decisions see it.
type PluginView struct {
	// Known is false where no plugin of that id is configured.
	Known bool
	// Ready means that calls can be sent now.
	Ready bool
	// State is the supervisor's word for it, Reason says why it is not ready.
	State  string
	Reason string
	// Stopped means that it was stopped on purpose, and waits for a person.
	Stopped bool
	// Incarnation changes whenever the plugin's process does.
	Incarnation uint64
	// CallTimeout is the deadline of a call to the plugin's node service; 0 if
	// it is not known. A call that ran into it may have an effect that much later.
	CallTimeout time.Duration
	Info        PluginInfo
}

// uses adds the sides that the plugin has to those that a volume uses already.
func (i PluginInfo) uses(have Uses) Uses {
	return Uses{Attach: have.Attach || i.Caps.Attach, Stage: have.Stage || i.Caps.Stage}
}

// Remedy is the command that helps with a plugin that is not ready.
func (v PluginView) Remedy(id string) string {
	if v.Stopped {
		return Command("volctl plugin start %s", id)
	}
	return Command("volctl plugin status %s", id)
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
