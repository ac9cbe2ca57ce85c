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
	case "step-failed", "warning", volume.EventRefused, "create-failed", "delete-failed",
		"plugin-unhealthy", "plugin-backing-off", "plugin-failed", "plugin-warning":
		level = hclog.Warn
	case "plugin-ready", "created", "registered", "updated", "deleted", "deregistered", "owner-gone", "runtime-created", "runtime-removed",
		"node-draining", "node-undrained", "restored":
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

	log.Log(level, e.Type, append(about, "message", e.Message)...)
}
