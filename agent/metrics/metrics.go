// Package metrics counts events in an agent and shows the counts in the text format of Prometheus.
//
// A scrape only reads memory: it makes no call, and uses neither a plugin nor a file. No label
// comes from a claim or a path. A label comes from a volume only if its plugin was asked about the
// volume. The series of a plugin or a volume disappear with it. docs/metrics.md lists all metrics.
package metrics

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/volagent/volagent/volmgr/volume"
)

// Options are the sources of a Metrics. A scrape calls them, so they must answer at once.
type Options struct {
	Version string
	Started time.Time
	// Plugins returns all configured plugins.
	Plugins func() []Plugin
	// Records returns all volumes, and Attempt the result of the last step of a volume.
	Records func() []volume.Record
	Attempt func(volume.Record) *volume.Attempt
	// Reports returns the plugins' reports about existing volumes; nil: there are none.
	Reports func() []Report
	// Host returns the state of the agent and this host.
	Host func() Host
}

// Host is the state of the agent and its host.
type Host struct {
	// Commits and Failures count the commits to the state database and their failures. Fault is the
	// error of the last commit, if it failed.
	Commits, Failures uint64
	Fault             error
	// Lost is the time when the state database was lost and made again; zero: never.
	Lost time.Time
	// Halted: the agent sends no call to any plugin. Draining: it accepts no claim.
	Halted, Draining bool
	// The number of volumes that were deregistered by force and have pending calls or leftovers.
	Leftovers int
}

// Plugin is one part of a plugin. Many plugins have only one part. Parts with the same ID differ in
// Type or Instance.
type Plugin struct {
	ID       string
	Driver   string
	Type     string // node, controller or monolith
	Instance string
	State    string
	Restarts int
}

// Bucket limits in seconds, up to the default time limit of each kind of call.
var (
	probeBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
	callBuckets  = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
)

// Metrics are the metrics of one agent.
type Metrics struct {
	o        Options
	registry *prometheus.Registry
	probes   *prometheus.HistogramVec
	calls    *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec

	mu     sync.Mutex
	called map[string]uint64 // the number of calls by plugin, for plugins with series
	scrape sync.Mutex        // serializes scrapes
}

// New returns metrics without any counts. It starts nothing. Calls may be counted from now on.
func New() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), called: map[string]uint64{}}
	m.probes = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "volagent_plugin_probe_duration_seconds", Help: "How long a plugin took to answer Probe, by gRPC code.", Buckets: probeBuckets,
	}, []string{"plugin", "code"})
	m.calls = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "volagent_plugin_rpc_duration_seconds", Help: "How long a plugin took to answer a call other than Probe, by method and gRPC code.", Buckets: callBuckets,
	}, []string{"plugin", "method", "code"})
	m.inFlight = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "volagent_plugin_rpcs_in_flight", Help: "Calls that were sent to a plugin and are not answered.",
	}, []string{"plugin", "method"})
	m.registry.MustRegister(m.probes, m.calls, m.inFlight)
	return m
}

// Collect adds the metrics of the agent's state. It is called once, before the first Write. The
// sources exist later than the counters of calls, because they make calls themselves.
func (m *Metrics) Collect(o Options) {
	m.o = o
	m.registry.MustRegister(state{o}, reports{o})
}

// contentType is the content type of the text format of Prometheus.
const contentType = "text/plain; version=0.0.4; charset=utf-8"

// ContentType returns the content type of the output of Write.
func (*Metrics) ContentType() string { return contentType }

// Write writes all metrics with their present values.
func (m *Metrics) Write(w io.Writer) error {
	m.scrape.Lock()
	defer m.scrape.Unlock()

	m.prune()
	families, err := m.registry.Gather()
	if err != nil {
		return fmt.Errorf("cannot gather the metrics: %w", err)
	}

	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(w, f); err != nil {
			return fmt.Errorf("cannot write the metrics: %w", err)
		}
	}

	return nil
}

// prune removes the series of plugins that no longer exist.
func (m *Metrics) prune() {
	m.mu.Lock()
	before := make(map[string]uint64, len(m.called))
	for id, n := range m.called {
		before[id] = n
	}

	m.mu.Unlock()
	for _, p := range m.o.Plugins() {
		delete(before, p.ID)
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	for id, n := range before {
		if m.called[id] != n {
			continue // it has just come back
		}

		delete(m.called, id)
		of := prometheus.Labels{"plugin": id}
		m.probes.DeletePartialMatch(of)
		m.calls.DeletePartialMatch(of)
		m.inFlight.DeletePartialMatch(of)
	}
}
