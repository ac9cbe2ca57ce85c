package volume

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/output"
)

// well reports whether a report contains no problem.
func well(r *api.Report) bool { return r == nil || len(r.Health) == 0 }

// fresh is the maximum age of a report that is shown without its age.
const fresh = 5 * time.Second

// asOf returns the age of a report, or "" if the report is fresh.
func asOf(now, then time.Time) string {
	if then.IsZero() || now.Sub(then) < fresh {
		return ""
	}
	return output.Since(now, then) + " ago"
}

// volumeFacts returns the facts at the end of the first line of the screen. If there is a problem,
// they say whether the data is safe. Otherwise they say how full the volume is.
func volumeFacts(v *api.Volume, now time.Time) []string {
	if v.DataSafe != "" || v.StillMounted != "" {
		return []string{"data safe: " + output.Dash(v.DataSafe), "still mounted: " + output.Dash(v.StillMounted)}
	}

	var stats api.Stats
	if v.Report != nil && v.Report.Stats != nil {
		stats = *v.Report.Stats
	}

	var parts []string
	switch {
	case totalOnly(stats):
		parts = append(parts, output.Size(stats.BytesTotal))
	case stats.BytesTotal > 0:
		unit := output.SizeUnit(stats.BytesTotal)
		parts = append(parts, fmt.Sprintf("%s/%s %s", output.InUnit(stats.BytesUsed, unit), output.Size(stats.BytesTotal), output.Percent(stats.BytesUsed, stats.BytesTotal)))
	case v.Capacity > 0 && unenforced(v) == "":
		parts = append(parts, output.Size(v.Capacity))
	}

	if note := unenforced(v); note != "" {
		parts = append(parts, output.Size(v.Capacity)+note)
	}

	if stats.InodesTotal > 0 {
		parts = append(parts, "inodes "+output.Percent(stats.InodesUsed, stats.InodesTotal))
	}

	if old := asOf(now, stats.At); old != "" && stats.BytesTotal+stats.InodesTotal > 0 {
		parts = append(parts, "("+old+")")
	}

	return []string{strings.Join(parts, "  ")}
}

// bundledDriver is the CSI name of the bundled driver.
const bundledDriver = "local.csi.volagent"

// unenforced returns a note if the volume can grow beyond its size, and "" otherwise. A directory
// volume of the bundled driver can grow if it has no quota. The volume context and the mutable
// parameters show whether there is a quota.
func unenforced(v *api.Volume) string {
	quota := v.Spec.Mutable["quota"]
	limited := quota != "" && quota != "none" || quota == "" && v.Spec.Context["size"] == "enforced"
	if v.Driver != bundledDriver || v.Spec.Context["type"] != "directory" || v.Capacity == 0 || limited {
		return ""
	}
	return ", size not enforced"
}

// reportLines returns lines with the problems that the plugin reports for a volume, and with the
// requests that the plugin did not answer.
func reportLines(r *api.Report, now time.Time) []output.Field {
	if r == nil {
		return nil
	}

	var lines []output.Field
	for _, f := range r.Health {
		lines = append(lines, output.Named("Health", output.Finding(f), output.Joined(", ", "says the "+f.By, asOf(now, r.CheckedAt[f.By]))))
	}

	if s := r.Storage; s != nil {
		lines = append(lines, output.Named("Storage", output.SizeOrDash(s.Capacity), output.Places(s.Topologies)))
		if len(s.PublishedNodes) > 0 {
			lines = append(lines, output.Named("", "attached to "+strings.Join(s.PublishedNodes, ", ")))
		}
	}

	for _, s := range r.Silent {
		lines = append(lines, output.Named("Silent", s))
	}

	return lines
}

// storageLines returns lines with the topologies and mutable parameters of a volume. An operator
// may need this data to claim or modify the volume.
func storageLines(v *api.Volume) []output.Field {
	var lines []output.Field
	for i, t := range v.Topologies {
		name := "Place"
		if i > 0 {
			name = "or"
		}
		lines = append(lines, output.Named(name, output.Topology(t)))
	}

	if len(v.Spec.Mutable) > 0 {
		lines = append(lines, output.Named("Mutable", output.Topology(v.Spec.Mutable)))
	}

	return slices.Clip(lines)
}
