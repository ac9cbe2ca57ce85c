package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Cluster is the part of this host in its cluster.
type Cluster struct {
	Reachable bool
	Holds     int
	Calls     int           // the announced controller calls of this host that are in flight
	Lag       time.Duration // how long the oldest own change has waited for the watch
	Lanes     []Lane

	// Takeovers counts the holds of lost hosts that this host has dropped, and TakeoverFailures the tries
	// that have failed.
	Takeovers, TakeoverFailures int

	// Live is the number of live hosts. It is 0 if this host does not count them.
	Live int
}

// Lane is the queue of one kind of writes to the cluster.
type Lane struct {
	Name   string
	Length int
	Age    time.Duration // how long the oldest write has waited
}

var (
	clusterReachable = prometheus.NewDesc("volagent_cluster_reachable", "1 while this host is registered and reaches the cluster's etcd.", nil, nil)
	clusterLive      = prometheus.NewDesc("volagent_cluster_live_hosts", "Live hosts of the cluster. Only the host that cleans up first counts them.", nil, nil)
	clusterHolds     = prometheus.NewDesc("volagent_cluster_holds", "Holds of this host on shared volumes.", nil, nil)
	clusterCalls     = prometheus.NewDesc("volagent_cluster_calls_in_flight", "Calls that attach or detach the shared volumes of this host, and are in flight.", nil, nil)
	clusterLag       = prometheus.NewDesc("volagent_cluster_watch_lag_seconds", "How long the oldest change by this host has been waiting for the watch; 0 if none is waiting.", nil, nil)
	takeovers        = prometheus.NewDesc("volagent_cluster_takeovers_total", "Volumes that this host has taken from hosts that were gone.", nil, nil)
	takeoverFailures = prometheus.NewDesc("volagent_cluster_takeover_failures_total", "Tries of this host to take a volume from a host that was gone, and that have failed.", nil, nil)
	laneLength       = prometheus.NewDesc("volagent_cluster_queue_length", "Writes that wait for their turn, by lane.", []string{"lane"}, nil)
	laneAge          = prometheus.NewDesc("volagent_cluster_queue_age_seconds", "How long the oldest waiting write has waited, by lane.", []string{"lane"}, nil)
)

// cluster collects the metrics of the cluster. Only one host has the number of live hosts, because no
// other host watches them.
type cluster struct{ o Options }

// Describe implements prometheus.Collector.
func (cluster) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{clusterReachable, clusterLive, clusterHolds, clusterCalls, clusterLag, takeovers, takeoverFailures, laneLength, laneAge} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c cluster) Collect(to chan<- prometheus.Metric) {
	now := c.o.Cluster()
	gauge(to, clusterReachable, truth(now.Reachable))
	if now.Live > 0 {
		gauge(to, clusterLive, float64(now.Live))
	}
	gauge(to, clusterHolds, float64(now.Holds))
	gauge(to, clusterCalls, float64(now.Calls))
	gauge(to, clusterLag, now.Lag.Seconds())
	count(to, takeovers, float64(now.Takeovers))
	count(to, takeoverFailures, float64(now.TakeoverFailures))
	for _, l := range now.Lanes {
		gauge(to, laneLength, float64(l.Length), l.Name)
		gauge(to, laneAge, l.Age.Seconds(), l.Name)
	}
}

// Admitted counts an admission with its duration.
func (m *Metrics) Admitted(took time.Duration) { m.admissions.Observe(took.Seconds()) }
