package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// probe is the only CSI call that has its own metric.
const probe = "Probe"

// Calls counts the calls that one client makes to a plugin.
type Calls struct {
	m      *Metrics
	plugin string

	mu sync.Mutex
	// methods caches the series by method, so that a call needs no lookup by labels. The cache also
	// keeps the counts of plugins with the same id apart: a call to a removed plugin that ends late
	// changes only the series of the removed plugin.
	methods map[string]*method
}

// method holds the series of one CSI method.
type method struct {
	inFlight prometheus.Gauge
	took     map[string]prometheus.Observer // observers of the durations, by gRPC code
}

// Calls returns a counter for the calls that a new client makes to a plugin.
func (m *Metrics) Calls(pluginID string) *Calls {
	return &Calls{m: m, plugin: pluginID, methods: map[string]*method{}}
}

// Began counts a call that the client is about to send.
func (c *Calls) Began(name string) {
	c.mu.Lock()
	in := c.method(name).inFlight
	c.mu.Unlock()
	in.Inc()
}

// Ended counts the end of a call that Began counted.
func (c *Calls) Ended(name, code string, took time.Duration) {
	c.mu.Lock()
	of := c.method(name)
	observe := of.took[code]
	if observe == nil {
		c.add(func() {
			if name == probe {
				observe = c.m.probes.WithLabelValues(c.plugin, code)
			} else {
				observe = c.m.calls.WithLabelValues(c.plugin, name, code)
			}
		})
		of.took[code] = observe
	}

	c.mu.Unlock()
	of.inFlight.Dec()
	observe.Observe(took.Seconds())
}

// method returns the series of one method. The caller holds c.mu.
func (c *Calls) method(name string) *method {
	of := c.methods[name]
	if of == nil {
		of = &method{took: map[string]prometheus.Observer{}}
		c.add(func() { of.inFlight = c.m.inFlight.WithLabelValues(c.plugin, name) })
		c.methods[name] = of
	}

	return of
}

// add makes a series, and counts it for the plugin. prune uses the count to notice a plugin that
// was added again.
func (c *Calls) add(series func()) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.m.called[c.plugin]++
	series()
}
