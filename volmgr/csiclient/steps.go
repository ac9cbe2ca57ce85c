package csiclient

import "github.com/volagent/volagent/volmgr/volume"

// These are the calls with which the client asks a plugin about itself. The package volume names
// all other calls.
const (
	stepProbe                     volume.Kind = "Probe"
	stepGetPluginInfo             volume.Kind = "GetPluginInfo"
	stepGetPluginCapabilities     volume.Kind = "GetPluginCapabilities"
	stepControllerGetCapabilities volume.Kind = "ControllerGetCapabilities"
	stepNodeGetCapabilities       volume.Kind = "NodeGetCapabilities"
	stepNodeGetInfo               volume.Kind = "NodeGetInfo"
	stepGroupGetCapabilities      volume.Kind = "GroupControllerGetCapabilities"
)
