package volume

import (
	"maps"
	"slices"
	"strings"
)

// DefaultTopology is what CreateVolume is sent for a request without a topology: this
// host's segments, as requisite and as preferred, so that the volume can be mounted
// here. It is empty for a plugin without VOLUME_ACCESSIBILITY_CONSTRAINTS, and where
// the plugin's node part names no segments.
func (p PluginInfo) DefaultTopology() TopologyRequest {
	if !p.Caps.Topology || len(p.Topology) == 0 {
		return TopologyRequest{}
	}
	here := []map[string]string{maps.Clone(p.Topology)}
	return TopologyRequest{Required: here, Preferred: here}
}

// TopologyToSend is what CreateVolume is sent for a request. A create that continues an
// earlier one, of which the record is had, repeats what that one sent; a record from
// before the default existed has none, and none was sent.
func (v Volume) TopologyToSend(p PluginInfo, had Volume) TopologyRequest {
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

// CheckCloneSource refuses a volume that a clone with the default topology cannot be
// made from, because it cannot be reached from this host.
func (v Volume) CheckCloneSource(p PluginInfo) error {
	from := v.outOfReach(p)
	if from == "" {
		return nil
	}
	return Errorf(ErrRefused, "cannot clone volume %q for this host: it can be reached from %s, and this host is at %s",
		v.ID, from, segments(p.Topology)).WithHint("give the clone a topology_request, or create it on a host that reaches the volume")
}

// reaches refuses a volume that its plugin cannot reach from this host (CSI
// accessible_topology). Where either side says nothing there is nothing to compare:
// a node part that was never asked says nothing, too.
func (v Volume) reaches(p PluginInfo) error {
	from := v.outOfReach(p)
	if from == "" {
		return nil
	}
	return Errorf(ErrRefused, "volume %q cannot be mounted on this host: it can be reached from %s, and this host is at %s",
		v.ID, from, segments(p.Topology)).WithHint("volctl plugin status %s", v.PluginID)
}

// outOfReach names the places of a volume that cannot be reached from this host; it is
// empty for all others.
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

// in looks a segment up. Keys are compared without case (CSI spec, Topology).
func in(topology map[string]string, key, value string) bool {
	for k, have := range topology {
		if strings.EqualFold(k, key) {
			return have == value
		}
	}
	return false
}

// segments are a topology in words.
func segments(t map[string]string) string {
	words := make([]string, 0, len(t))
	for _, key := range slices.Sorted(maps.Keys(t)) {
		words = append(words, key+"="+t[key])
	}
	return strings.Join(words, " ")
}
