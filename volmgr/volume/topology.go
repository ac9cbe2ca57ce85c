package volume

import (
	"maps"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
)

// TopologyToSend returns the topology of a CreateVolume call for a request. had is the record of an
// earlier create that this one continues, and its topology is sent again. A record from before
// DefaultTopology existed has no TopologySent, and no default was sent.
func (v Volume) TopologyToSend(p PluginInfo, had Volume) call.TopologyRequest {
	switch {
	case v.Topology.Given():
		return v.Topology
	case had.Provision != Provisioning:
		return p.DefaultTopology()
	case had.TopologySent.Given():
		return had.TopologySent
	default:
		return had.Topology
	}
}

// CheckCloneSource refuses to clone a volume with the default topology if this host cannot reach
// the volume.
func (v Volume) CheckCloneSource(p PluginInfo) error {
	from := v.outOfReach(p)
	if from == "" {
		return nil
	}
	return Errorf(ErrRefused, "cannot clone volume %q for this host: it can be reached from %s, and this host is at %s",
		v.ID, from, segments(p.Topology)).WithHint("give the clone a topology_request, or create it on a host that reaches the volume")
}

// reaches refuses a volume that its plugin cannot reach from this host (CSI accessible_topology).
// If the volume or the plugin names no topology, there is nothing to compare. A node part that was
// never asked names none.
func (v Volume) reaches(p PluginInfo) error {
	from := v.outOfReach(p)
	if from == "" {
		return nil
	}
	return Errorf(ErrRefused, "volume %q cannot be mounted on this host: it can be reached from %s, and this host is at %s",
		v.ID, from, segments(p.Topology)).WithRemedy(remedy.Of(remedy.ShowPlugin, v.PluginID))
}

// outOfReach returns the places from which the volume can be reached, if this host is not one of
// them. Otherwise it returns "".
func (v Volume) outOfReach(p PluginInfo) string {
	if !p.Caps.Topology || len(p.Topology) == 0 || len(v.Topologies) == 0 {
		return ""
	}

	within := func(segments map[string]string) bool {
		for key, value := range segments {
			if !in(p.Topology, key, value) {
				return false
			}
		}

		return true
	}

	if slices.ContainsFunc(v.Topologies, within) {
		return ""
	}

	places := make([]string, len(v.Topologies))
	for i, t := range v.Topologies {
		places[i] = segments(t)
	}

	return strings.Join(places, ", or from ")
}

// in reports whether a topology has a segment. Keys are compared without case (CSI spec, Topology).
func in(topology map[string]string, key, value string) bool {
	for k, have := range topology {
		if strings.EqualFold(k, key) {
			return have == value
		}
	}
	return false
}

// segments formats a topology as words.
func segments(t map[string]string) string {
	words := make([]string, 0, len(t))
	for _, key := range slices.Sorted(maps.Keys(t)) {
		words = append(words, key+"="+t[key])
	}
	return strings.Join(words, " ")
}
