package status

import "github.com/volagent/volagent/agent/metrics"

// HostMetrics returns the state of the agent and this host.
func (s *Service) HostMetrics() metrics.Host {
	n := s.Records.Node()
	return metrics.Host{
		Commits: s.Records.Commits(), Failures: s.Records.Failures(), Fault: s.Records.Fault(), Lost: n.Loss.At,
		Halted: s.Halt != "", Draining: n.Draining, Leftovers: len(s.leftovers()),
	}
}

// ReportMetrics returns the last reports of plugins about volumes.
func (s *Service) ReportMetrics() (out []metrics.Report) {
	for _, r := range s.Records.Volumes() {
		if last := s.Volumes.LastReport(r); last.Stats != nil || last.Node != nil || last.Controller != nil {
			out = append(out, metrics.Report{Volume: r.Volume.ID, Plugin: r.Volume.PluginID, Report: last})
		}
	}

	return out
}

// PluginMetrics returns all parts of all plugins.
func (s *Service) PluginMetrics() (out []metrics.Plugin) {
	for _, st := range s.Plugins.Parts() {
		out = append(out, metrics.Plugin{ID: st.ID, Driver: st.Info.Driver, Type: st.Type, Instance: st.Instance, State: string(st.State), Restarts: st.Restarts})
	}
	return out
}
