package metrics

import (
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// withReports adds plugins' reports about two volumes to the sources.
func withReports(o Options) Options {
	at := time.Unix(1700000000, 5e8)
	o.Reports = func() []Report {
		return []Report{
			{Volume: "data", Plugin: "ebs", Report: volume.Report{
				Stats:   &call.Stats{Bytes: &call.Usage{Total: 100, Used: 41, Available: 59}, Inodes: &call.Usage{Total: 10, Used: 3, Available: 7}},
				StatsAt: at,
				Node:    &volume.Checkup{At: at, Found: []call.Condition{{Severity: call.DataLoss}, {Severity: "status 9"}, {Severity: "status 8"}}},
			}},
			{Volume: "a \"disk\"", Plugin: "ebs", Report: volume.Report{
				Stats: &call.Stats{Bytes: &call.Usage{Total: 7}}, StatsAt: at, Controller: &volume.Checkup{At: at},
			}},
		}
	}
	return o
}

func TestReports(t *testing.T) {
	m := collected(withReports(busy().metrics().o))
	expect(t, scrape(t, m), []string{
		`volagent_volume_bytes{kind="total",plugin="ebs",volume="data"} 100`,
		`volagent_volume_bytes{kind="used",plugin="ebs",volume="data"} 41`,
		`volagent_volume_bytes{kind="available",plugin="ebs",volume="data"} 59`,
		`volagent_volume_inodes{kind="used",plugin="ebs",volume="data"} 3`,
		`volagent_volume_stats_time_seconds{plugin="ebs",volume="data"} 1.7000000005e+09`,
		`volagent_volume_health{by="node",plugin="ebs",severity="data-loss",volume="data"} 1`,
		`volagent_volume_health{by="node",plugin="ebs",severity="degraded",volume="data"} 0`,
		`volagent_volume_health{by="node",plugin="ebs",severity="other",volume="data"} 2`,
		`volagent_volume_bytes{kind="total",plugin="ebs",volume="a \"disk\""} 7`,
		`volagent_volume_health{by="controller",plugin="ebs",severity="abnormal",volume="a \"disk\""} 0`,
	},
		// The metrics must not contain values that no plugin has reported.
		`volagent_volume_health{by="controller",plugin="ebs",severity="abnormal",volume="data"}`,
		`volagent_volume_health{by="node",plugin="ebs",severity="abnormal",volume="a`,
		`volagent_volume_inodes{kind="total",plugin="ebs",volume="a`,
		`volagent_volume_bytes{kind="used",plugin="ebs",volume="a`,
		`volagent_volume_bytes{kind="available",plugin="ebs",volume="a`,
	)
}
