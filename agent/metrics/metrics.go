// Package metrics counts events in the agent and shows the counts in the text format of Prometheus.
//
// A scrape only reads memory: it calls no plugin and opens no file. No label comes from a claim or
// a path. A label contains a volume's id only if the agent asked the plugin about that volume. When
// a plugin or a volume is removed, its series disappear. docs/metrics.md lists all metrics.
package metrics

import (
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// Options are the sources from which a Metrics gets its values. Every scrape calls these functions,
// so they must answer at once.
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
	// Cluster returns the part of this host in its cluster. It is nil if no cluster is configured.
	Cluster func() Cluster
}

// Host is the state of the agent and its host.
type Host struct {
	// Commits counts the commits to the state database, and Failures counts the failed commits.
	// Fault is the error of the last commit, if the commit failed.
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

// The following values are bucket limits in seconds. They reach up to the default time limit of
// each kind of call.
var (
	probeBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
	callBuckets  = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
)

// Report is the most recent information that a plugin reported about a volume.
type Report struct {
	Volume string // the volume's id
	Plugin string
	volume.Report
}
