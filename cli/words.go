package cli

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/volagent/volagent/agent/api"
)

// pluginState adds a note if a changed file is pending.
func pluginState(p *api.Plugin) string {
	if p.Pending != "" {
		return p.State + ", change pending"
	}
	return p.State
}

// staged shows how many volumes are staged on this host, and the limit if there is one.
func staged(p *api.Plugin) string {
	if p.MaxVolumes > 0 {
		return strconv.Itoa(p.Staged) + "/" + strconv.FormatInt(p.MaxVolumes, 10)
	}
	return strconv.Itoa(p.Staged)
}

func topology(segments map[string]string) string {
	parts := make([]string, 0, len(segments))
	for _, k := range slices.Sorted(maps.Keys(segments)) {
		parts = append(parts, k+"="+segments[k])
	}
	return strings.Join(parts, " ")
}

// places lists the topologies from which a volume can be reached.
func places(all []map[string]string) string {
	var words []string
	for _, t := range all {
		words = append(words, topology(t))
	}
	return joined(" or ", words...)
}

// finding formats one problem that a plugin reports, in one line.
func finding(f api.Finding) string {
	return oneLine(joined(": ", joined(", ", f.Severity, f.Reason), f.Message))
}
