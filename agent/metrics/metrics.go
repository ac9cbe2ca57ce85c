// Package metrics counts what happens in an agent and shows it in the text
// format of Prometheus.
//
// A scrape reads what is in memory: it sends no call, and touches neither a
// plugin nor a file. No label comes from a claim or a path, and from a volume only
// where its plugin was asked about it. What is told of a plugin or a volume goes with
// it. docs/metrics.md lists all of it.
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

// Options are what a Metrics reads at a scrape. All of it must be at hand.
type Options struct {
	Version string
	Started time.Time
	// Plugins are all that are configured.
	Plugins func() []Plugin
	// Records are all volumes, and Attempt says how the last step of one went.
	Records func() []volume.Record
	Attempt func(volume.Record) *volume.Attempt
	// Reports are those of volumes that are there; nil: there are none.
	Reports func() []Report
	// Host is how the agent and this host are.
	Host func() Host
}

// Host is how the agent and its host are.
type Host struct {
	// Commits and Failures count those to the state database; Fault is why the last
	// one failed.
	Commits, Failures uint64
	Fault             error
	// Lost is when the state database was made anew because it was lost; zero: never.
	Lost time.Time
	// Halted: no call is sent to any plugin. Draining: no claim is taken.
	Halted, Draining bool
	// Debts counts the volumes that were deregistered by force and left something.
	Debts int
}

// Plugin is one part of a plugin: mostly all there is of it. No two of an ID have
// the same Type and Instance.
type Plugin struct {
	ID       string
	Driver   string
	Type     string // node, controller or monolith
	Instance string
	State    string
	Restarts int
}

// Buckets, in seconds, up to the longest that each may take by default.
var (
	probeBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
	callBuckets  = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
)

// Metrics are those of one agent.
type Metrics struct {
	o        Options
	registry *prometheus.Registry
	probes   *prometheus.HistogramVec
	calls    *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec

	mu     sync.Mutex
	called map[string]uint64 // plugins that have series of calls, and how many were made
	scrape sync.Mutex        // one at a time
}

// New returns metrics that have counted nothing yet. It starts nothing.
func New(o Options) *Metrics {
	m := &Metrics{o: o, registry: prometheus.NewRegistry(), called: map[string]uint64{}}
	m.probes = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "volagent_plugin_probe_duration_seconds", Help: "How long a plugin took to answer Probe, by gRPC code.", Buckets: probeBuckets,
	}, []string{"plugin", "code"})
	m.calls = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "volagent_plugin_rpc_duration_seconds", Help: "How long a plugin took to answer a call other than Probe, by method and gRPC code.", Buckets: callBuckets,
	}, []string{"plugin", "method", "code"})
	m.inFlight = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "volagent_plugin_rpcs_in_flight", Help: "Calls that were sent to a plugin and are not answered.",
	}, []string{"plugin", "method"})
	m.registry.MustRegister(m.probes, m.calls, m.inFlight, state{o}, reports{o})
	return m
}

// contentType is that of the text format of Prometheus.
const contentType = "text/plain; version=0.0.4; charset=utf-8"

// ContentType is that of what Write writes.
func (*Metrics) ContentType() string { return contentType }

// Write writes all metrics as they are now.
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

// prune drops the series of plugins that are gone.
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
