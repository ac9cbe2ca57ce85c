package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
	"github.com/volagent/volagent/volmgr/shared"
)

// onEtcd begins a fault of etcd, which lasts for a random time. It begins none while etcd has another fault,
// because two members must reach each other. If hosts may lose their leases, all are disturbed.
func (c *clusterChaos) onEtcd(dice *rand.Rand, most time.Duration, leases bool, begin func() (end func())) *activeFault {
	for _, f := range c.faults {
		if f.etcd {
			return nil
		}
	}
	if leases {
		c.disturbed(c.stations...)
	}
	return &activeFault{until: time.Now().Add(between(dice, brief, most)), etcd: true, lease: leases, end: begin()}
}

// onMember is onEtcd for a random member.
func (c *clusterChaos) onMember(dice *rand.Rand, most time.Duration, leases bool, begin func(*lab.Member) (end func())) *activeFault {
	m := c.Etcd[dice.IntN(chaosMembers)]
	return c.onEtcd(dice, most, leases, func() func() { return begin(m) })
}

// kill kills members, and starts them again at the end of the fault.
func kill(members ...*lab.Member) (end func()) {
	for _, m := range members {
		m.Kill()
	}
	return func() {
		for _, m := range members {
			m.Launch()
		}
		for _, m := range members {
			m.AwaitReady()
		}
	}
}

func (c *clusterChaos) killMember(dice *rand.Rand) *activeFault {
	return c.onMember(dice, 5*time.Second, false, func(m *lab.Member) func() { return kill(m) })
}

func (c *clusterChaos) killLeader(dice *rand.Rand) *activeFault {
	return c.onEtcd(dice, 5*time.Second, false, func() func() {
		for _, m := range c.Etcd {
			if m.Leads() {
				return kill(m)
			}
		}
		return nil // they elect one
	})
}

func (c *clusterChaos) freezeMember(dice *rand.Rand) *activeFault {
	return c.onMember(dice, long, true, func(m *lab.Member) func() {
		m.Freeze()
		return m.Thaw
	})
}

func (c *clusterChaos) cutMember(dice *rand.Rand) *activeFault {
	return c.onMember(dice, long, true, func(m *lab.Member) func() {
		var ways [][2]*lab.Host
		for _, other := range c.Etcd {
			if other != m {
				ways = append(ways, [2]*lab.Host{m.Host, other.Host}, [2]*lab.Host{other.Host, m.Host})
			}
		}
		return c.cut(ways)
	})
}

func (c *clusterChaos) deafenMember(dice *rand.Rand) *activeFault {
	return c.onMember(dice, long, true, func(m *lab.Member) func() {
		var ways [][2]*lab.Host
		for _, other := range c.Etcd {
			if other != m {
				ways = append(ways, [2]*lab.Host{other.Host, m.Host})
			}
		}
		return c.cut(ways)
	})
}

func (c *clusterChaos) slowMemberDisk(dice *rand.Rand) *activeFault {
	return c.onMember(dice, 10*time.Second, true, func(m *lab.Member) func() {
		return m.SlowDisk(between(dice, 50*time.Millisecond, 500*time.Millisecond))
	})
}

// failMemberDisk makes a member end because its disk fails.
func (c *clusterChaos) failMemberDisk(dice *rand.Rand) *activeFault {
	return c.onMember(dice, 5*time.Second, true, func(m *lab.Member) func() {
		end := m.FailDisk()
		m.Host.Await("the end of the member whose disk fails", func() bool { return !m.Runs() })
		end()
		return m.Start
	})
}

// failpoints are the failpoints of etcd at which members die or wait.
var failpoints = []string{
	"raftBeforeSave", "raftAfterSave", "raftBeforeLeaderSend", "raftBeforeFollowerSend", "raftBeforeAdvance",
	"walBeforeSync", "walAfterSync", "beforeCommit", "afterCommit", "commitBeforePreCommitHook", "commitAfterPreCommitHook",
	"beforeStartDBTxn", "afterStartDBTxn", "beforeWritebackBuf", "afterWritebackBuf", "beforeApplyOneEntryNormal",
}

// killAtFailpoint makes a member die at a failpoint. A follower never reaches that of the leader.
func (c *clusterChaos) killAtFailpoint(dice *rand.Rand) *activeFault {
	name := failpoints[dice.IntN(len(failpoints))]
	return c.onMember(dice, 5*time.Second, true, func(m *lab.Member) func() {
		m.Host.Must(m.SetFailpoint(name, "panic"))
		return func() {
			if m.Runs() {
				m.Kill()
			} else {
				c.counts.Add("members that died at a failpoint")
			}
			m.Start()
		}
	})
}

// slowAtFailpoint makes a member wait each time at a failpoint.
func (c *clusterChaos) slowAtFailpoint(dice *rand.Rand) *activeFault {
	name := append(slices.Clone(failpoints), "beforeSendWatchResponse")[dice.IntN(len(failpoints)+1)]
	terms := fmt.Sprintf("sleep(%d)", between(dice, 20*time.Millisecond, 400*time.Millisecond).Milliseconds())
	return c.onMember(dice, 10*time.Second, true, func(m *lab.Member) func() {
		m.Host.Must(m.SetFailpoint(name, terms))
		return func() { m.Host.Must(m.ClearFailpoint(name)) }
	})
}

func (c *clusterChaos) replaceMember(dice *rand.Rand) *activeFault {
	return c.onMember(dice, brief, true, func(m *lab.Member) func() {
		c.Replace(m)
		return nil
	})
}

func (c *clusterChaos) loseQuorum(dice *rand.Rand) *activeFault {
	stays := dice.IntN(chaosMembers)
	return c.onEtcd(dice, long, true, func() func() { return kill(c.Etcd[(stays+1)%chaosMembers], c.Etcd[(stays+2)%chaosMembers]) })
}

// killMembers kills all members. Every second time it then copies their data.
func (c *clusterChaos) killMembers(dice *rand.Rand) *activeFault {
	return c.onEtcd(dice, 10*time.Second, true, func() func() {
		end := kill(c.Etcd...)
		if dice.IntN(2) == 0 {
			c.backup = c.SaveEtcd()
		}
		return end
	})
}

// restore ends all faults, replaces the data of etcd by an older copy, and runs the commands that the agents then
// ask for.
func (c *clusterChaos) restore(*rand.Rand) *activeFault {
	if c.backup == "" {
		return nil
	}
	c.endFaults()
	c.settle(2 * time.Minute) // a user may wait for a claim that fails, and then for its end
	c.disturbed(c.stations...)
	from := c.now()
	c.restores.Add(1)
	defer c.restores.Add(1)
	end := kill(c.Etcd...)
	c.RestoreEtcd(c.backup)
	end()
	h := c.Hosts[0].Host
	h.Await("the agents to say that etcd went back", func() bool {
		for _, s := range c.stations {
			if !strings.Contains(s.Try("node", "status").Out, "volctl cluster restored") {
				return false
			}
		}
		return true
	})
	clusterCommand(h, "restored")
	var restored int64 // the revision of the new epoch
	for _, kv := range c.keys() {
		if kv.Key == shared.MetaKey {
			restored = kv.Mod
		}
	}
	h.Await("all hosts in the new epoch", func() bool { return tryCluster(h, "resume").Code == 0 })
	h.Await("the end of the holds that the backup brought back", func() bool {
		return !slices.ContainsFunc(c.keys(), func(kv shared.KV) bool { return strings.HasPrefix(kv.Key, "holds/") && kv.Create < restored })
	})
	for _, v := range c.volumes {
		c.record(0, request{kind: kindRestore, volume: v.id}, answer{done: true}, from, c.now())
	}
	return &activeFault{lease: true}
}
