package csiclient

import "github.com/volagent/volagent/volmgr/call"

// Names of the calls with which the client asks a plugin about itself. The domain names all other
// calls.
const (
	stepProbe                     call.Kind = "Probe"
	stepGetPluginInfo             call.Kind = "GetPluginInfo"
	stepGetPluginCapabilities     call.Kind = "GetPluginCapabilities"
	stepControllerGetCapabilities call.Kind = "ControllerGetCapabilities"
	stepNodeGetCapabilities       call.Kind = "NodeGetCapabilities"
	stepNodeGetInfo               call.Kind = "NodeGetInfo"
	stepGroupGetCapabilities      call.Kind = "GroupControllerGetCapabilities"
)
