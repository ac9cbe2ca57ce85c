package agent

import (
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/metrics"
	"github.com/volagent/volagent/volmgr/volume"
)

// newMetrics counts what this agent does. What it is to read need only be there
// when it is first asked for them.
func (a *agent) newMetrics() *metrics.Metrics {
	return metrics.New(metrics.Options{
		Version: api.Version, Started: a.started,
		Plugins: a.pluginMetrics, Records: a.db.Volumes, Attempt: func(r volume.Record) *volume.Attempt { return a.queue.Last(r) },
		Reports: a.reportMetrics,
		Commits: a.db.Commits, Fault: a.db.Fault,
	})
}

func (a *agent) reportMetrics() (out []metrics.Report) {
	for _, r := range a.db.Volumes() {
		if last := a.volumes.LastReport(r); last.Stats != nil || last.Node != nil || last.Controller != nil {
			out = append(out, metrics.Report{Volume: r.Volume.ID, Plugin: r.Volume.PluginID, Report: last})
		}
	}
	return out
}

func (a *agent) pluginMetrics() (out []metrics.Plugin) {
	for _, st := range a.plugins.Parts() {
		out = append(out, metrics.Plugin{ID: st.ID, Driver: st.Info.Driver, Type: st.Type, Instance: st.Instance, State: string(st.State), Restarts: st.Restarts})
	}
	return out
}
