package cluster_test

import (
	"math/rand/v2"

	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
)

func (c *clusterChaos) isolate(dice *rand.Rand) *activeFault {
	return c.onHost(dice, brief, long, func(s *station) func() {
		return c.cut(append(c.fromEtcd(s), c.toEtcd(s)...)) // hosts do not talk to each other
	})
}

func (c *clusterChaos) cutFromEtcd(dice *rand.Rand) *activeFault {
	return c.onHost(dice, brief, long, func(s *station) func() { return c.cut(c.fromEtcd(s)) })
}

func (c *clusterChaos) cutToEtcd(dice *rand.Rand) *activeFault {
	return c.onHost(dice, brief, long, func(s *station) func() { return c.cut(c.toEtcd(s)) })
}

func (c *clusterChaos) cutFromMember(dice *rand.Rand) *activeFault {
	m := c.Etcd[dice.IntN(chaosMembers)]
	return c.onHost(dice, brief, long, func(s *station) func() { return c.cut([][2]*lab.Host{{m.Host, s.Host}}) })
}

// fromEtcd and toEtcd are the directions between a host and the members of etcd.
func (c *clusterChaos) fromEtcd(s *station) (ways [][2]*lab.Host) {
	for _, m := range c.Etcd {
		ways = append(ways, [2]*lab.Host{m.Host, s.Host})
	}
	return ways
}

func (c *clusterChaos) toEtcd(s *station) (ways [][2]*lab.Host) {
	for _, m := range c.Etcd {
		ways = append(ways, [2]*lab.Host{s.Host, m.Host})
	}
	return ways
}

// cut stops all packets in the given directions until the test calls the returned function.
func (c *clusterChaos) cut(ways [][2]*lab.Host) (end func()) {
	for _, w := range ways {
		c.Cut(w[0], w[1])
	}
	return func() {
		for _, w := range ways {
			c.Join(w[0], w[1])
		}
	}
}
