package csiclient

import "github.com/volagent/volagent/volmgr/volume"

// Names of the calls by which a plugin says what it is; all others have theirs in
// the domain.
const (
	stepProbe                     volume.Kind = "Probe"
	stepGetPluginInfo             volume.Kind = "GetPluginInfo"
	stepGetPluginCapabilities     volume.Kind = "GetPluginCapabilities"
	stepControllerGetCapabilities volume.Kind = "ControllerGetCapabilities"
	stepNodeGetCapabilities       volume.Kind = "NodeGetCapabilities"
	stepNodeGetInfo               volume.Kind = "NodeGetInfo"
	stepGroupGetCapabilities      volume.Kind = "GroupControllerGetCapabilities"
)
