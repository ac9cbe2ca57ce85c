package cluster_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// faultKind is a kind of fault, or a command of a person, in TestClusterChaos.
type faultKind struct {
	name   string
	weight int  // how often it is chosen
	short  bool // whether the short run has it, too

	// begin begins a fault. It returns nil if that is not possible now.
	begin func(*clusterChaos, *rand.Rand) *activeFault
}

// activeFault is a fault that lasts.
type activeFault struct {
	until time.Time
	hosts []*station // that have the fault
	etcd  bool       // whether etcd has the fault
	lease bool       // whether all hosts may lose their leases
	calls bool       // whether calls of a driver take longer
	tick  func()     // called several times while the fault lasts, or nil
	end   func()     // ends the fault, or nil
}

// faultKinds returns the faults of a run. The short run has those that last briefly and do not need a calm
// cluster.
func faultKinds(all bool, only string) (kinds []faultKind) {
	for _, k := range []faultKind{
		{"agent killed", 8, true, (*clusterChaos).killAgent},
		{"agent stopped", 3, true, (*clusterChaos).stopAgent},
		{"agent frozen", 5, true, (*clusterChaos).freezeAgent},
		{"agent and plugin frozen", 5, true, (*clusterChaos).freezeHost},
		{"plugin killed", 6, true, (*clusterChaos).killPlugin},
		{"plugin frozen", 3, true, (*clusterChaos).freezePlugin},
		{"state disk fails", 3, false, (*clusterChaos).failStateDisk},
		{"state disk slow", 3, false, (*clusterChaos).slowStateDisk},
		{"host off", 10, true, (*clusterChaos).powerOff},
		{"host off, old records", 4, false, (*clusterChaos).powerOffWithOldRecords},
		{"host off, person fences", 3, false, (*clusterChaos).powerOffAndFence},
		{"host isolated", 6, true, (*clusterChaos).isolate},
		{"host deaf to etcd", 4, true, (*clusterChaos).cutFromEtcd},
		{"host mute to etcd", 4, true, (*clusterChaos).cutToEtcd},
		{"host cut from one member", 3, true, (*clusterChaos).cutFromMember},
		{"storage cut off", 4, true, (*clusterChaos).cutStorage},
		{"storage slow", 4, true, (*clusterChaos).slowStorage},
		{"call fails", 6, true, (*clusterChaos).failCall},
		{"answer lost", 6, true, (*clusterChaos).loseAnswer},
		{"calls slow", 6, true, (*clusterChaos).slowCalls},
		{"calls held", 5, true, (*clusterChaos).holdCalls},
		{"wall clock jumps", 5, false, (*clusterChaos).jumpClock},
		{"drain", 2, true, (*clusterChaos).drain},
		{"move", 3, true, (*clusterChaos).move},
		{"member killed", 4, true, (*clusterChaos).killMember},
		{"leader killed", 3, true, (*clusterChaos).killLeader},
		{"member frozen", 3, false, (*clusterChaos).freezeMember},
		{"member cut off", 3, false, (*clusterChaos).cutMember},
		{"member hears nobody", 2, false, (*clusterChaos).deafenMember},
		{"member's disk slow", 2, false, (*clusterChaos).slowMemberDisk},
		{"member's disk fails", 2, false, (*clusterChaos).failMemberDisk},
		{"member killed at a failpoint", 4, false, (*clusterChaos).killAtFailpoint},
		{"member slow at a failpoint", 3, false, (*clusterChaos).slowAtFailpoint},
		{"member replaced", 2, false, (*clusterChaos).replaceMember},
		{"quorum lost", 2, false, (*clusterChaos).loseQuorum},
		{"all members killed", 2, false, (*clusterChaos).killMembers},
		{"etcd restored", 1, false, (*clusterChaos).restore},
	} {
		if only == "" && (all || k.short) || slices.Contains(strings.Split(only, ","), k.name) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// between returns a random duration.
func between(dice *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(dice.Int64N(int64(most-least)+1))
}

// disturb lets faults begin and end until the given time has passed, or a user has found an error.
func (c *clusterChaos) disturb(last time.Duration) {
	c.t.Helper()
	plan := rand.New(rand.NewPCG(c.seed, 1<<32))
	var lots []faultKind // each kind as often as its weight
	for _, k := range faultKinds(*clusterChaosFor > 0, *clusterChaosOnly) {
		lots = append(lots, slices.Repeat([]faultKind{k}, k.weight)...)
	}
	if len(lots) == 0 {
		c.t.Fatalf("no fault is called %q", *clusterChaosOnly)
	}
	c.Hosts[0].Await("the first writes", func() bool { return c.counts.Of("writes") > chaosHosts })
	if *clusterChaosOnly == "" {
		c.begin(faultKind{name: "host off", begin: (*clusterChaos).loseHost}, plan)
	}
	next := time.Now()
	for end := time.Now().Add(last); time.Now().Before(end) && !c.hasFailed(); time.Sleep(20 * time.Millisecond) {
		c.tend(time.Now())
		c.examineAll()
		if time.Now().Before(next) || len(c.faults) >= mostFaults {
			continue
		}
		// Each fault has random numbers of its own, so the number of those that it uses changes no other fault.
		c.begin(lots[plan.IntN(len(lots))], rand.New(rand.NewPCG(plan.Uint64(), 0)))
		next = time.Now().Add(between(plan, 200*time.Millisecond, 2*time.Second))
	}
}

// begin begins a fault if that is possible now.
func (c *clusterChaos) begin(k faultKind, dice *rand.Rand) {
	c.t.Helper()
	f := k.begin(c, dice)
	if f == nil {
		return
	}
	c.counts.Add("fault: " + k.name)
	c.t.Logf("%7.3f s: %s %s", float64(c.now())/1e9, k.name, f.names())
	c.disturbed(f.hosts...)
	for _, s := range f.hosts {
		s.busy = true
		s.quiet.Store(false)
	}
	c.faults = append(c.faults, f)
}

// names returns the names of the hosts that have a fault.
func (f *activeFault) names() (names string) {
	for _, s := range f.hosts {
		names += s.Name + " "
	}
	return names
}

// hasFailed reports whether a user has found an error, or the SAN a violation.
func (c *clusterChaos) hasFailed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.failed) > 0 || len(c.san.Violations()) > 0
}

// tend ends the faults whose time has come.
func (c *clusterChaos) tend(now time.Time) {
	for _, f := range slices.Clone(c.faults) {
		if now.Before(f.until) {
			if f.tick != nil {
				f.tick()
			}
			continue
		}
		if f.end != nil {
			f.end()
		}
		for _, s := range f.hosts {
			s.busy = false
		}
		c.faults = slices.DeleteFunc(c.faults, func(other *activeFault) bool { return other == f })
		if f.lease {
			c.expire(c.stations...)
		} else {
			c.expire(f.hosts...)
		}
	}
}

// leaseEnds is longer than the time from the last renewal of a lease until etcd and the host have noticed its
// end.
const leaseEnds = 16 * time.Second

// expire says that the hosts had a fault until now, which may still end their leases.
func (c *clusterChaos) expire(stations ...*station) {
	for _, s := range stations {
		if !slices.ContainsFunc(c.faults, func(f *activeFault) bool { return f.lease || slices.Contains(f.hosts, s) }) {
			s.certainAt = c.now() + leaseEnds.Nanoseconds()
		}
	}
}

// endFaults ends all faults.
func (c *clusterChaos) endFaults() { c.tend(time.Now().Add(24 * time.Hour)) }

// idle returns a random host that has no fault, or nil.
func (c *clusterChaos) idle(dice *rand.Rand) *station {
	free := slices.DeleteFunc(slices.Clone(c.stations), func(s *station) bool { return s.busy })
	if len(free) <= chaosHosts-mostFaults {
		return nil
	}
	return free[dice.IntN(len(free))]
}

// onHost begins a fault of a random host, which lasts for a random time.
func (c *clusterChaos) onHost(dice *rand.Rand, least, most time.Duration, begin func(*station) (end func())) *activeFault {
	s := c.idle(dice)
	if s == nil {
		return nil
	}
	c.disturbed(s) // before its effect
	return &activeFault{until: time.Now().Add(between(dice, least, most)), hosts: []*station{s}, end: begin(s)}
}
