package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// well reports whether the plugin finds nothing wrong.
func well(r *api.Report) bool { return r == nil || len(r.Health) == 0 }

// fresh is how old what a plugin said may be and still count as said now.
const fresh = 5 * time.Second

// asOf says how old it is.
func asOf(now, then time.Time) string {
	if then.IsZero() || now.Sub(then) < fresh {
		return ""
	}
	return since(now, then) + " ago"
}

// volumeAside is what the first line says at the right: how safe the data is in
// trouble, else how full the volume is.
func volumeAside(v *api.Volume, now time.Time) string {
	if v.DataSafe != "" || v.StillMounted != "" {
		return oneLine("data safe: "+dash(v.DataSafe)) + "   " + oneLine("still mounted: "+dash(v.StillMounted))
	}
	var stats api.Stats
	if v.Report != nil && v.Report.Stats != nil {
		stats = *v.Report.Stats
	}
	var parts []string
	switch {
	case totalOnly(stats):
		parts = append(parts, size(stats.BytesTotal))
	case stats.BytesTotal > 0:
		unit := sizeUnit(stats.BytesTotal)
		parts = append(parts, fmt.Sprintf("%s/%s %s", inUnit(stats.BytesUsed, unit), size(stats.BytesTotal), percent(stats.BytesUsed, stats.BytesTotal)))
	case v.Capacity > 0 && unenforced(v) == "":
		parts = append(parts, size(v.Capacity))
	}
	if note := unenforced(v); note != "" {
		parts = append(parts, size(v.Capacity)+note)
	}
	if stats.InodesTotal > 0 {
		parts = append(parts, "inodes "+percent(stats.InodesUsed, stats.InodesTotal))
	}
	if old := asOf(now, stats.At); old != "" && stats.BytesTotal+stats.InodesTotal > 0 {
		parts = append(parts, "("+old+")")
	}
	return strings.Join(parts, "  ")
}

// bundledDriver is the CSI name of the bundled driver.
const bundledDriver = "local.csi.volagent"

// unenforced is what to add to the size of a volume that can outgrow it; empty for every other
// one. The bundled driver's directories can, unless they have a quota: one that the context tells
// of, or one that was set.
func unenforced(v *api.Volume) string {
	quota := v.Spec.Mutable["quota"]
	limited := quota != "" && quota != "none" || quota == "" && v.Spec.Context["size"] == "enforced"
	if v.Driver != bundledDriver || v.Spec.Context["type"] != "directory" || v.Capacity == 0 || limited {
		return ""
	}
	return ", size not enforced"
}

// reportLines are what a plugin finds wrong with a volume, and what it did not answer.
func reportLines(r *api.Report, now time.Time) []pair {
	if r == nil {
		return nil
	}
	var lines []pair
	for _, f := range r.Health {
		lines = append(lines, field("Health", finding(f), joined(", ", "says the "+f.By, asOf(now, r.CheckedAt[f.By]))))
	}
	if s := r.Storage; s != nil {
		lines = append(lines, field("Storage", joined("  ", sizeOrDash(s.Capacity), places(s.Topologies)), ""))
		if len(s.PublishedNodes) > 0 {
			lines = append(lines, field("", "attached to "+strings.Join(s.PublishedNodes, ", "), ""))
		}
	}
	for _, s := range r.Silent {
		lines = append(lines, field("Silent", s, ""))
	}
	return lines
}

// storageLines are what the plugin was told of a volume, or told of it, and a person
// may have to know before it is claimed or modified.
func storageLines(v *api.Volume) []pair {
	var lines []pair
	for i, t := range v.Topologies {
		name := "Place"
		if i > 0 {
			name = "  or"
		}
		lines = append(lines, field(name, topology(t), ""))
	}
	if len(v.Spec.Mutable) > 0 {
		lines = append(lines, field("Mutable", topology(v.Spec.Mutable), ""))
	}
	return slices.Clip(lines)
}
