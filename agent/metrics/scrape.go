package metrics

import (
	"fmt"
	"io"
	"maps"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// Metrics are the metrics of one agent.
type Metrics struct {
	o        Options
	registry *prometheus.Registry
	probes   *prometheus.HistogramVec
	calls    *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec

	admissions prometheus.Histogram // exported only in a cluster

	mu     sync.Mutex
	called map[string]uint64 // the number of series made for each plugin
	scrape sync.Mutex        // serializes scrapes
}

// New returns metrics in which all counts are zero. It starts nothing.
func New() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), called: map[string]uint64{}}
	m.probes = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "volagent_plugin_probe_duration_seconds", Help: "How long a plugin took to answer Probe, by gRPC code.", Buckets: probeBuckets,
	}, []string{"plugin", "code"})
	m.calls = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "volagent_plugin_rpc_duration_seconds", Help: "How long a plugin took to answer a call other than Probe, by method and gRPC code.", Buckets: callBuckets,
	}, []string{"plugin", "method", "code"})
	m.inFlight = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "volagent_plugin_rpcs_in_flight", Help: "Calls to a plugin that it has not answered yet.",
	}, []string{"plugin", "method"})
	m.admissions = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "volagent_cluster_admission_duration_seconds", Help: "How long the admission of a hold took, without the wait for other hosts.", Buckets: probeBuckets,
	})
	m.registry.MustRegister(m.probes, m.calls, m.inFlight)
	return m
}

// Collect adds the metrics of the agent's state. The caller calls it once, before the first Write.
// The sources in o need the Metrics to count calls, so New cannot receive them.
func (m *Metrics) Collect(o Options) {
	m.o = o
	m.registry.MustRegister(state{o}, reports{o})
	if o.Cluster != nil {
		m.registry.MustRegister(cluster{o}, m.admissions)
	}
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
	before := maps.Clone(m.called)
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
