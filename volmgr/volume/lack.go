package volume

import "github.com/volagent/volagent/volmgr/call"

// Lack says why a call that the volume may need cannot be sent now. It returns "" if there is no
// such call.
func (r Record) Lack(v PluginView) string {
	switch {
	case !v.ReadyFor(call.NodePublish):
		return v.Lacks(r.Volume.PluginID, call.NodePublish)
	case (v.Info.Caps.Attach || r.Node.Uses.Attach || v.unasked(call.ControllerPublish)) && !v.ReadyFor(call.ControllerPublish):
		return v.Lacks(r.Volume.PluginID, call.ControllerPublish)
	default:
		return ""
	}
}

// FinalLack returns the same as Lack if waiting alone cannot help, and "" otherwise.
func (r Record) FinalLack(v PluginView) string {
	attaches := v.Info.Caps.Attach || r.Node.Uses.Attach
	switch {
	case v.FinalFor(call.NodePublish):
		return v.Lacks(r.Volume.PluginID, call.NodePublish)
	case attaches && v.FinalFor(call.ControllerPublish):
		return v.Lacks(r.Volume.PluginID, call.ControllerPublish)
	default:
		return ""
	}
}
