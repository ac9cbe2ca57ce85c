package csiclient

import "github.com/volagent/volagent/volmgr/call"

// These names are the calls by which the client asks a plugin about its own properties. The package
// call defines the names of all other calls.
const (
	stepProbe                     call.Method = "Probe"
	stepGetPluginInfo             call.Method = "GetPluginInfo"
	stepGetPluginCapabilities     call.Method = "GetPluginCapabilities"
	stepControllerGetCapabilities call.Method = "ControllerGetCapabilities"
	stepNodeGetCapabilities       call.Method = "NodeGetCapabilities"
	stepNodeGetInfo               call.Method = "NodeGetInfo"
	stepGroupGetCapabilities      call.Method = "GroupControllerGetCapabilities"
)
