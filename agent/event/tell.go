package event

import (
	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/volume"
)

// Tell writes an event to the agent's log. It logs failures as warnings, important changes at info
// level, and all other events at debug level.
func Tell(log hclog.Logger, e Event) {
	level := hclog.Debug
	switch e.Type {
	case volume.EventStepFailed, volume.EventWarning, volume.EventClaimRefused, volume.EventCreateFailed, volume.EventDeleteFailed,
		volume.EventPluginUnhealthy, volume.EventPluginBackingOff, volume.EventPluginFailed, volume.EventPluginWarning,
		volume.EventHoldLost, volume.EventHoldConflict, volume.EventClusterUnreachable:
		level = hclog.Warn
	case volume.EventPluginReady, volume.EventCreated, volume.EventRegistered, volume.EventShared, volume.EventUnshared, volume.EventUpdated, volume.EventDeleted, volume.EventDeregistered,
		volume.EventOwnerGone, volume.EventRuntimeCreated, volume.EventRuntimeRemoved, volume.EventNodeDraining, volume.EventNodeUndrained, volume.EventRestored,
		volume.EventVolumeLeaving, volume.EventVolumeReserved, volume.EventReservationEnded,
		volume.EventNodeRegistered, volume.EventClusterReachable:
		level = hclog.Info
	}

	if level == hclog.Debug && !log.IsDebug() {
		return
	}

	var about []any
	for _, pair := range [][2]string{{"volume", e.Volume}, {"alloc", e.Alloc}, {"plugin", e.Plugin}, {"part", e.Part}} {
		if pair[1] != "" {
			about = append(about, pair[0], pair[1])
		}
	}

	log.Log(level, string(e.Type), append(about, "message", e.Message)...)
}
