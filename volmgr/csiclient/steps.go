package csiclient

import "github.com/volagent/volagent/volmgr/call"

// These are the calls with which the client asks a plugin about itself. The package volume names
// all other calls.
const (
	stepProbe                     call.Method = "Probe"
	stepGetPluginInfo             call.Method = "GetPluginInfo"
	stepGetPluginCapabilities     call.Method = "GetPluginCapabilities"
	stepControllerGetCapabilities call.Method = "ControllerGetCapabilities"
	stepNodeGetCapabilities       call.Method = "NodeGetCapabilities"
	stepNodeGetInfo               call.Method = "NodeGetInfo"
	stepGroupGetCapabilities      call.Method = "GroupControllerGetCapabilities"
)
