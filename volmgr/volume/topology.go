package volume

import (
	"maps"
	"slices"
	"strings"
)

// reaches refuses a volume that its plugin cannot reach from this host (CSI
// accessible_topology). Where either side says nothing there is nothing to compare:
// a node part that was never asked says nothing, too.
func (v Volume) reaches(p PluginInfo) error {
	if !p.Caps.Topology || len(p.Topology) == 0 || len(v.Topologies) == 0 {
		return nil
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
		return nil
	}
	places := make([]string, len(v.Topologies))
	for i, t := range v.Topologies {
		places[i] = segments(t)
	}
	return Errorf(ErrRefused, "volume %q cannot be mounted on this host: it can be reached from %s, and this host is at %s",
		v.ID, strings.Join(places, ", or from "), segments(p.Topology)).WithHint("volctl plugin status %s", v.PluginID)
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
