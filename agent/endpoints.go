package agent

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/config"
)

// endpointsEvery is the interval at which the agent looks for new endpoints of etcd.
const endpointsEvery = 10 * time.Second

// followEndpoints reads the endpoints of etcd again while the agent runs. volagent-etcd changes them in
// cluster.yaml when the members of the cluster change. Otherwise an agent that has not been restarted for
// long could know only members that are gone.
func (a *Agent) followEndpoints(ctx context.Context) {
	tick := time.NewTicker(endpointsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}

		c, err := config.Load(a.flags)
		if err != nil {
			a.log.Debug("cannot read the endpoints of etcd again", "error", err)
			continue
		}
		a.takeEndpoints(c.Cluster)
	}
}

// takeEndpoints uses the endpoints of a cluster section that was read again. It returns false if another
// part of the section has changed too, or if the agent cannot use the endpoints. Such a change takes
// effect at the next start.
func (a *Agent) takeEndpoints(c config.Cluster) bool {
	if a.clusterStore == nil || !c.Enabled() {
		return false
	}
	same := a.c.Cluster
	same.Endpoints = c.Endpoints
	if !reflect.DeepEqual(same, c) {
		return false
	}
	if slices.Equal(c.Endpoints, a.clusterStore.Endpoints()) {
		return true
	}

	if err := a.clusterStore.SetEndpoints(c.Endpoints); err != nil {
		a.log.Debug("the new endpoints take effect at the next start of the agent", "error", err)
		return false
	}
	a.log.Info("the cluster has other endpoints now", "endpoints", c.Endpoints)
	return true
}

// etcdAddresses returns the endpoints of etcd, for messages.
func (a *Agent) etcdAddresses() string { return strings.Join(a.clusterStore.Endpoints(), ", ") }
