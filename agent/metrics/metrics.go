// Package metrics counts events in the agent and shows the counts in the text format of Prometheus.
//
// A scrape only reads memory: it calls no plugin and opens no file. No label comes from a claim or
// a path. A label contains a volume's id only if the agent asked the plugin about that volume. The
// series of a plugin or a volume disappear with it. docs/metrics.md lists all metrics.
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

// Options are the sources of the values of a Metrics. Every scrape calls these functions, so they
// must answer at once.
type Options struct {
	Version string
	Started time.Time
	// Plugins returns all configured plugins.
	Plugins func() []Plugin
	// Records returns the records of all volumes. Attempt returns the result of the last step of a
	// volume.
	Records func() []volume.Record
	Attempt func(volume.Record) *volume.Attempt
	// Reports returns the plugins' last reports about existing volumes. If it is nil, there are no
	// reports.
	Reports func() []Report
	// Host returns the state of the agent and this host.
	Host func() Host
}

// Host is the state of the agent and its host.
type Host struct {
	// Commits counts the commits to the state database, and Failures counts the failed ones. Fault
	// is the error of the last commit, if it failed.
	Commits, Failures uint64
	Fault             error
	// Lost is the time when the agent replaced a lost state database by a new one. It is zero if
	// the database was never lost.
	Lost time.Time
	// Halted is set if the agent sends no call to any plugin. Draining is set if it accepts no
	// claim.
	Halted, Draining bool
	// Leftovers is the number of volumes that were deregistered by force and have pending calls or
	// leftovers.
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

// The bucket limits in seconds, up to the default time limit of each kind of call.
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
	called map[string]uint64 // the number of series made for each plugin
	scrape sync.Mutex        // serializes scrapes
}

// New returns metrics in which all counts are zero. It starts nothing.
func New(o Options) *Metrics {
	m := &Metrics{o: o, registry: prometheus.NewRegistry(), called: map[string]uint64{}}
	m.probes = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "volagent_plugin_probe_duration_seconds", Help: "How long a plugin took to answer Probe, by gRPC code.", Buckets: probeBuckets,
	}, []string{"plugin", "code"})
	m.calls = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "volagent_plugin_rpc_duration_seconds", Help: "How long a plugin took to answer a call other than Probe, by method and gRPC code.", Buckets: callBuckets,
	}, []string{"plugin", "method", "code"})
	m.inFlight = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "volagent_plugin_rpcs_in_flight", Help: "Calls to a plugin that it has not answered yet.",
	}, []string{"plugin", "method"})
	m.registry.MustRegister(m.probes, m.calls, m.inFlight, state{o}, reports{o})
	return m
}

// contentType is the content type of the text format of Prometheus.
const contentType = "text/plain; version=0.0.4; charset=utf-8"

// ContentType returns the content type of the output of Write.
func (*Metrics) ContentType() string { return contentType }

// Write writes all metrics with their current values.
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
			continue // the plugin has returned in the meantime
		}

		delete(m.called, id)
		of := prometheus.Labels{"plugin": id}
		m.probes.DeletePartialMatch(of)
		m.calls.DeletePartialMatch(of)
		m.inFlight.DeletePartialMatch(of)
	}
}
