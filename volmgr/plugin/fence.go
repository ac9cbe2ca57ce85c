package plugin

import (
	"slices"

	"github.com/volagent/volagent/volmgr/call"
)

// Fence names the proof that a lost host no longer writes to the volumes of a plugin. It comes from the
// plugin file. The agent cannot derive it from the plugin's answers, because no CSI capability promises
// that the storage refuses the writes of a detached host.
type Fence string

// These are the values of Fence. A person can always state that a host is powered off.
const (
	FenceNone          Fence = ""                // only a person or the lost host itself can prove it
	FenceDetach        Fence = "detach"          // a ControllerUnpublishVolume that succeeded cuts the host off
	FenceDetachWhenOff Fence = "detach-when-off" // the detach counts only for a host that is proven to be off
	FenceHook          Fence = "hook"            // an executable switches the host off
)

// strictness lists the values of Fence. The later a value is in the list, the more proof it demands of
// a host.
var strictness = []Fence{FenceNone, FenceDetach, FenceHook, FenceDetachWhenOff}

// Stricter returns the fence that demands more proof. A part without a fence leaves the decision to
// the plugin's other parts.
func (f Fence) Stricter(o Fence) Fence {
	if slices.Index(strictness, o) > slices.Index(strictness, f) {
		return o
	}
	return f
}

// Detaches reports whether the proof includes a successful ControllerUnpublishVolume.
func (f Fence) Detaches() bool { return f == FenceDetach || f == FenceDetachWhenOff }

// FenceLack says why the plugin cannot give the proof that its plugin file names. It is empty if the
// plugin can, or if the capabilities of its controller are not known on this host.
func (v View) FenceLack() string {
	if !v.Fence.Detaches() || !v.Info.HasController || v.Unasked(call.ControllerUnpublish) || v.Info.Caps.Attach {
		return ""
	}
	return "its plugin file has fence: " + string(v.Fence) + ", but its controller lacks PUBLISH_UNPUBLISH_VOLUME, so no detach can cut off a lost host"
}
