package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/volagent/volagent/volmgr/volume"
)

// What is read at a scrape, and counted nowhere.
var (
	partLabels = []string{"plugin", "type", "instance"}

	pluginUp = prometheus.NewDesc("volagent_plugin_up", "Whether calls can be sent to a plugin.",
		[]string{"plugin", "type", "instance", "driver"}, nil)
	pluginState = prometheus.NewDesc("volagent_plugin_state", "1 for the state that a plugin is in, 0 for the others.",
		[]string{"plugin", "type", "instance", "state"}, nil)
	pluginRestarts = prometheus.NewDesc("volagent_plugin_restarts_total", "How often a plugin was started again since the agent started.", partLabels, nil)

	volumes = prometheus.NewDesc("volagent_volumes", "Volumes by state, from what is recorded: no mount is looked at.", []string{"state"}, nil)
	claims  = prometheus.NewDesc("volagent_claims", "Claims by state.", []string{"state"}, nil)

	buildInfo = prometheus.NewDesc("volagent_build_info", "1, with the version of the agent.", []string{"version"}, nil)
	startTime = prometheus.NewDesc("volagent_start_time_seconds", "When the agent started, in seconds since 1970.", nil, nil)
	dbCommits = prometheus.NewDesc("volagent_db_commits_total", "Commits to the state database since the agent started.", nil, nil)
	dbUp      = prometheus.NewDesc("volagent_db_up", "0 while the state database cannot be written.", nil, nil)
)

// The states that there are: each is shown, also while nothing is in it.
var (
	pluginStates = []string{"starting", "ready", "unhealthy", "backing-off", "stopped", "failed"}
	volumeStates = []volume.State{
		volume.StateFree, volume.StateMounting, volume.StateMounted, volume.StateDegraded, volume.StateReleasing, volume.StateStuck,
	}
	claimStates = []volume.ClaimState{volume.Pending, volume.Taken, volume.Unpublishing, volume.NodeDetached, volume.ControllerDetached}
)

// state is the collector of all that.
type state struct{ o Options }

// Describe implements prometheus.Collector.
func (state) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		pluginUp, pluginState, pluginRestarts, volumes, claims, buildInfo, startTime, dbCommits, dbUp,
	} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (s state) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	seen := map[[3]string]bool{}
	for _, p := range s.o.Plugins() {
		// Two at once, while files change, would be an error for all of the scrape.
		part := [3]string{p.ID, p.Type, p.Instance}
		if seen[part] {
			continue
		}
		seen[part] = true
		gauge(pluginUp, truth(p.State == "ready"), p.ID, p.Type, p.Instance, p.Driver)
		for _, st := range pluginStates {
			gauge(pluginState, truth(p.State == st), p.ID, p.Type, p.Instance, st)
		}
		count(pluginRestarts, float64(p.Restarts), p.ID, p.Type, p.Instance)
	}
	vs, cs := s.tally()
	for _, st := range volumeStates {
		gauge(volumes, float64(vs[st]), string(st))
	}
	for _, st := range claimStates {
		gauge(claims, float64(cs[st]), string(st))
	}
	gauge(buildInfo, 1, s.o.Version)
	gauge(startTime, float64(s.o.Started.UnixMilli())/1000)
	count(dbCommits, float64(s.o.Commits()))
	gauge(dbUp, truth(s.o.Fault() == nil))
}

// tally counts volumes and claims by state.
func (s state) tally() (map[volume.State]int, map[volume.ClaimState]int) {
	vs, cs := map[volume.State]int{}, map[volume.ClaimState]int{}
	for _, r := range s.o.Records() {
		vs[volume.InBrief(r, s.o.Attempt(r))]++
		for _, c := range r.Claims {
			cs[c.State]++
		}
	}
	return vs, cs
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
