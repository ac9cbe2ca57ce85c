package output

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/volagent/volagent/agent/api"
)

// PluginState adds a note if a changed file is pending.
func PluginState(p *api.Plugin) string {
	if p.Pending != "" {
		return p.State + ", change pending"
	}
	return p.State
}

// Staged shows how many volumes are staged on this host, and the limit if there is one.
func Staged(p *api.Plugin) string {
	if p.MaxVolumes > 0 {
		return strconv.Itoa(p.Staged) + "/" + strconv.FormatInt(p.MaxVolumes, 10)
	}
	return strconv.Itoa(p.Staged)
}

// Topology formats the segments of a topology as KEY=VALUE, sorted by key.
func Topology(segments map[string]string) string {
	parts := make([]string, 0, len(segments))
	for _, k := range slices.Sorted(maps.Keys(segments)) {
		parts = append(parts, k+"="+segments[k])
	}
	return strings.Join(parts, " ")
}

// Places lists the topologies from which a volume can be reached.
func Places(all []map[string]string) string {
	var words []string
	for _, t := range all {
		words = append(words, Topology(t))
	}
	return Joined(" or ", words...)
}

// Finding formats one problem that a plugin reports, in one line.
func Finding(f api.Finding) string {
	return OneLine(Joined(": ", Joined(", ", f.Severity, f.Reason), f.Message))
}
