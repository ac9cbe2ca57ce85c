package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// A scrape reads the values of these metrics from the agent's state.
var (
	partLabels = []string{"plugin", "type", "instance"}

	pluginUp = prometheus.NewDesc("volagent_plugin_up", "Whether calls can be sent to a plugin.",
		[]string{"plugin", "type", "instance", "driver"}, nil)
	pluginState = prometheus.NewDesc("volagent_plugin_state", "1 for the current state of a plugin, 0 for the other states.",
		[]string{"plugin", "type", "instance", "state"}, nil)
	pluginRestarts = prometheus.NewDesc("volagent_plugin_restarts_total", "Restarts of a plugin since the agent started.", partLabels, nil)

	volumes = prometheus.NewDesc("volagent_volumes", "Volumes by state, according to the records; a scrape does not check the mounts.", []string{"state"}, nil)
	claims  = prometheus.NewDesc("volagent_claims", "Claims by state.", []string{"state"}, nil)

	buildInfo = prometheus.NewDesc("volagent_build_info", "1, with the version of the agent.", []string{"version"}, nil)
	startTime = prometheus.NewDesc("volagent_start_time_seconds", "When the agent started, in seconds since 1970.", nil, nil)
	dbCommits = prometheus.NewDesc("volagent_db_commits_total", "Commits to the state database since the agent started.", nil, nil)
	dbFailed  = prometheus.NewDesc("volagent_db_commit_failures_total", "Commits to the state database that failed, since the agent started.", nil, nil)
	dbUp      = prometheus.NewDesc("volagent_db_up", "0 while the state database cannot be written.", nil, nil)
	dbLost    = prometheus.NewDesc("volagent_db_lost_time_seconds", "When the agent last replaced a lost state database by a new one, in seconds since 1970; 0 if it never did.", nil, nil)
	adopted   = prometheus.NewDesc("volagent_adopted_claims", "Claims that the agent adopted after it lost the state database, and that still exist.", nil, nil)
	halted    = prometheus.NewDesc("volagent_halted", "1 while the agent sends no calls to plugins.", nil, nil)
	draining  = prometheus.NewDesc("volagent_draining", "1 while the agent empties the host and refuses new claims.", nil, nil)
	leftovers = prometheus.NewDesc("volagent_leftovers", "Volumes that were deregistered by force and still have leftovers or pending calls.", nil, nil)
)

// These are all states of plugins, volumes and claims. A scrape shows each state, even if its count
// is 0.
var (
	pluginStates = []string{plugin.Starting, plugin.Ready, plugin.Unhealthy, plugin.BackingOff, plugin.Stopped, plugin.Failed}
	volumeStates = []volume.State{
		volume.StateFree, volume.StateMounting, volume.StateMounted, volume.StateDegraded, volume.StateDetaching, volume.StateStuck,
	}
	claimStates = []volume.ClaimState{volume.Pending, volume.Mounted, volume.Unpublishing, volume.NodeDetached, volume.ControllerDetached}
)

// state collects the metrics that a scrape reads from the agent's state.
type state struct{ o Options }

// Describe implements prometheus.Collector.
func (state) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		pluginUp, pluginState, pluginRestarts, volumes, claims, adopted, buildInfo, startTime,
		dbCommits, dbFailed, dbUp, dbLost, halted, draining, leftovers,
	} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (s state) Collect(to chan<- prometheus.Metric) {
	s.plugins(to)
	vs, cs, held := s.tally()
	for _, st := range volumeStates {
		gauge(to, volumes, float64(vs[st]), string(st))
	}

	for _, st := range claimStates {
		gauge(to, claims, float64(cs[st]), string(st))
	}

	gauge(to, adopted, float64(held))
	gauge(to, buildInfo, 1, s.o.Version)
	gauge(to, startTime, seconds(s.o.Started))
	h := s.o.Host()
	count(to, dbCommits, float64(h.Commits))
	count(to, dbFailed, float64(h.Failures))
	gauge(to, dbUp, truth(h.Fault == nil))
	gauge(to, dbLost, seconds(h.Lost))
	gauge(to, halted, truth(h.Halted))
	gauge(to, draining, truth(h.Draining))
	gauge(to, leftovers, float64(h.Leftovers))
}

func (s state) plugins(to chan<- prometheus.Metric) {
	seen := map[[3]string]bool{}
	for _, p := range s.o.Plugins() {
		// While plugin files change, the list may contain a part twice. Two equal series would make
		// the whole scrape fail.
		part := [3]string{p.ID, p.Type, p.Instance}
		if seen[part] {
			continue
		}

		seen[part] = true
		gauge(to, pluginUp, truth(p.State == plugin.Ready), p.ID, p.Type, p.Instance, p.Driver)
		for _, st := range pluginStates {
			gauge(to, pluginState, truth(p.State == st), p.ID, p.Type, p.Instance, st)
		}

		count(to, pluginRestarts, float64(p.Restarts), p.ID, p.Type, p.Instance)
	}
}

func gauge(to chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func count(to chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

// seconds returns the seconds since 1970, or 0 for the zero time.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

// tally counts volumes by state, claims by state, and adopted claims.
func (s state) tally() (vs map[volume.State]int, cs map[volume.ClaimState]int, held int) {
	vs, cs = map[volume.State]int{}, map[volume.ClaimState]int{}
	for _, r := range s.o.Records() {
		vs[volume.InBrief(r, s.o.Attempt(r))]++
		for _, c := range r.Claims {
			cs[c.State]++
			if c.Adopted {
				held++
			}
		}
	}

	return vs, cs, held
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
