package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// probe is the one call that is counted apart from the others.
const probe = "Probe"

// Calls counts the calls of one client to a plugin.
type Calls struct {
	m      *Metrics
	plugin string

	mu sync.Mutex
	// What was looked up once is kept: a call costs no lookup by labels, and one that
	// ends after its plugin is gone touches no series of a later one.
	methods map[string]*method
}

// method is what is counted of one method.
type method struct {
	inFlight prometheus.Gauge
	took     map[string]prometheus.Observer // by code
}

// Calls returns what counts the calls of a new client to a plugin.
func (m *Metrics) Calls(pluginID string) *Calls {
	return &Calls{m: m, plugin: pluginID, methods: map[string]*method{}}
}

// Began is told that a call is sent.
func (c *Calls) Began(name string) {
	c.mu.Lock()
	in := c.method(name).inFlight
	c.mu.Unlock()
	in.Inc()
}

// Ended is told how a call ended that Began.
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

// method is what is counted of one; c.mu is held.
func (c *Calls) method(name string) *method {
	of := c.methods[name]
	if of == nil {
		of = &method{took: map[string]prometheus.Observer{}}
		c.add(func() { of.inFlight = c.m.inFlight.WithLabelValues(c.plugin, name) })
		c.methods[name] = of
	}
	return of
}

// add makes a series, and notes that the plugin has some to drop once it is gone.
func (c *Calls) add(series func()) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.m.called[c.plugin]++
	series()
}
