package cluster_test

import (
	"testing"
	"time"

	"github.com/volagent/volagent/agent/cluster"
	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/agent/cluster/storetest"
	"github.com/volagent/volagent/volmgr/shared"
)

// open opens a store that is closed with the test.
func open(t *testing.T, o cluster.Options) *cluster.Store {
	t.Helper()
	if o.Prefix == "" {
		o.Prefix = "test"
	}
	s, err := cluster.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// conformance runs the checks of all stores with an etcd cluster.
func conformance(t *testing.T, c *etcdtest.Cluster) {
	storetest.Run(t, storetest.Backend{
		Open: func(t *testing.T, prefix string) shared.Store {
			return open(t, cluster.Options{Endpoints: c.Endpoints(), Prefix: prefix})
		},
		Compact: c.Compact,
		Pass:    time.Sleep,
	})
}

func TestStoreOneMember(t *testing.T)    { conformance(t, etcdtest.Start(t, 1)) }
func TestStoreThreeMembers(t *testing.T) { conformance(t, etcdtest.Start(t, 3)) }
