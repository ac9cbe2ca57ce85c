package csiclient

import "github.com/volagent/volagent/volmgr/volume"

// Names of the calls that are no step of a volume's life on a host; the six
// that are have theirs in the domain.
const (
	stepProbe                     volume.Kind = "Probe"
	stepGetPluginInfo             volume.Kind = "GetPluginInfo"
	stepGetPluginCapabilities     volume.Kind = "GetPluginCapabilities"
	stepControllerGetCapabilities volume.Kind = "ControllerGetCapabilities"
	stepNodeGetCapabilities       volume.Kind = "NodeGetCapabilities"
	stepNodeGetInfo               volume.Kind = "NodeGetInfo"
	stepCreateVolume              volume.Kind = "CreateVolume"
	stepDeleteVolume              volume.Kind = "DeleteVolume"
	stepValidate                  volume.Kind = "ValidateVolumeCapabilities"
	stepNodeStats                 volume.Kind = "NodeGetVolumeStats"
	// stepNodeExpand is in the table of codes although nobody sends it yet.
	stepNodeExpand volume.Kind = "NodeExpandVolume"
)
