package agent

import (
	"slices"

	"github.com/volagent/volagent/agent/plugintest"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/volmgr/volume"
)

// inUse returns the volumes that are, or may be, on this host through a plugin.
func (a *agent) inUse(pluginID string) (ids []string) {
	for _, r := range (records.WithLeftovers{Store: a.db}).Volumes() {
		if r.Volume.PluginID == pluginID && r.Held() {
			ids = append(ids, r.Volume.ID)
		}
	}

	if left := a.scratches()[pluginID]; left != nil {
		ids = append(ids, plugintest.Name(left))
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// fuseClaims returns the number of claims with a FUSE mount through a plugin.
func (a *agent) fuseClaims(pluginID string) (n int) {
	for _, r := range (records.WithLeftovers{Store: a.db}).Volumes() {
		if r.Volume.PluginID == pluginID {
			n += fuseClaims(r)
		}
	}

	return n
}

func fuseClaims(r volume.Record) (n int) {
	for _, c := range r.Claims {
		if c.FUSE() {
			n++
		}
	}

	return n
}
