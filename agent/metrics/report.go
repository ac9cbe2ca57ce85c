package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

var (
	ofVolume = []string{"volume", "plugin"}

	volumeBytes  = prometheus.NewDesc("volagent_volume_bytes", "Size and use of a volume, as its plugin last reported them, in bytes.", append(ofVolume, "kind"), nil)
	volumeInodes = prometheus.NewDesc("volagent_volume_inodes", "Size and use of a volume, as its plugin last reported them, in inodes.", append(ofVolume, "kind"), nil)
	volumeTime   = prometheus.NewDesc("volagent_volume_stats_time_seconds", "When the plugin last reported the size and use of a volume, in seconds since 1970.", ofVolume, nil)
	volumeHealth = prometheus.NewDesc("volagent_volume_health", "Problems of a volume that a service of its plugin last reported.",
		append(ofVolume, "by", "severity"), nil)
)

// otherSeverity replaces every severity that this agent does not know. A newer CSI may define
// further severities, and each would add a label value.
const otherSeverity = "other"

var severities = []string{call.Degraded, call.Inaccessible, call.DataLoss, call.Abnormal, otherSeverity}

// reports collects the metrics from the plugins' reports about volumes.
type reports struct{ o Options }

// Describe implements prometheus.Collector.
func (reports) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{volumeBytes, volumeInodes, volumeTime, volumeHealth} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c reports) Collect(to chan<- prometheus.Metric) {
	if c.o.Reports == nil {
		return
	}

	for _, r := range c.o.Reports() {
		if r.Stats != nil {
			for d, u := range map[*prometheus.Desc]*call.Usage{volumeBytes: r.Stats.Bytes, volumeInodes: r.Stats.Inodes} {
				if u == nil {
					continue
				}

				gauge(to, d, float64(u.Total), r.Volume, r.Plugin, "total")
				if u.TotalOnly() {
					continue // do not report 0, which would mean that the volume is full
				}

				gauge(to, d, float64(u.Used), r.Volume, r.Plugin, "used")
				gauge(to, d, float64(u.Available), r.Volume, r.Plugin, "available")
			}

			gauge(to, volumeTime, seconds(r.StatsAt), r.Volume, r.Plugin)
		}

		for by, found := range map[string]*volume.Checkup{volume.ByNode: r.Node, volume.ByController: r.Controller} {
			if found == nil {
				continue
			}

			for severity, n := range bySeverity(found.Found) {
				gauge(to, volumeHealth, float64(n), r.Volume, r.Plugin, by, severity)
			}
		}
	}
}

// bySeverity counts findings by severity. The result contains every severity, even if its count is
// 0.
func bySeverity(found []call.Condition) map[string]int {
	out := map[string]int{}
	for _, s := range severities {
		out[s] = 0
	}

	for _, f := range found {
		if _, known := out[f.Severity]; known {
			out[f.Severity]++
		} else {
			out[otherSeverity]++
		}
	}

	return out
}
