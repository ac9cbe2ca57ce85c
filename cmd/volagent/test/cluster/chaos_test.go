package cluster_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

// These flags control TestClusterChaos.
var (
	clusterChaosSeed   = flag.Uint64("clusterchaos.seed", 0, "the random choices of TestClusterChaos come from this seed; 0 chooses one")
	clusterChaosFor    = flag.Duration("clusterchaos.for", 0, "run TestClusterChaos for so long, with everything; 0 is the short run")
	clusterChaosOnly   = flag.String("clusterchaos.only", "", "only these faults, separated by commas; for a search")
	clusterChaosWithin = flag.Duration("clusterchaos.within", 100*time.Second, "longest time from the end of all faults until holds, mounts and attachments agree")
)

// These are the sizes of TestClusterChaos.
const (
	chaosMembers  = 3
	chaosHosts    = mostHosts
	chaosVolumes  = 40
	usersPerHost  = 2
	claimsPerUser = 3
	chaosShort    = 25 * time.Second
	mostFaults    = 4 // that last at the same time
)

// clusterChaos is one run of TestClusterChaos.
type clusterChaos struct {
	*field
	*chronicle
	seed     uint64
	clock    harness.WallClock // of the agents in a run with all faults
	stations []*station
	volumes  []choice
	phase    atomic.Int32 // one of the phases of the users

	restores   atomic.Int32    // grows when a restore of etcd begins, and again when it ends
	disturbing context.Context // until the end of all faults
	work       sync.WaitGroup
	acked      ledger
	counts     harness.Tally

	// Only the goroutine of the test uses these fields.
	faults []*activeFault
	backup string // an older copy of etcd's data; see lab.SaveEtcd
}

// These are the phases of the users: they work, they only end claims whose requests have failed, and they end
// all claims.
const (
	phaseWork int32 = iota
	phaseTidy
	phaseEnd
)

// station is one host with its users.
type station struct {
	*lab.Host
	number int // from 0
	client *apiclient.Client
	users  []*chaosUser
	busy   bool // a fault of the host lasts; only the goroutine of the test uses it

	// gate is held for reading by each request of a user, and for writing while the host is examined.
	gate  sync.RWMutex
	quiet atomic.Bool // users must not begin a request

	// power is held for reading while a process is started on the host.
	power sync.RWMutex

	// since is the time in the chronicle since when the host may have lost claims without the knowledge of its
	// users, or 0.
	since atomic.Int64

	// A lease ends only some time after the fault that ended its renewal. With unsure, the host may thus lose
	// claims after it has been examined. verified is the begin of the last examination.
	unsure    atomic.Bool
	verified  atomic.Int64
	certainAt int64 // an examination that begins at this time makes the host sure; only the goroutine of the test uses it

	records string // an older copy of the state database, or ""
}

// TestClusterChaos lets clients of eight hosts claim, write and detach 40 volumes at random. Meanwhile, agents,
// plugins, whole hosts, the network, the storage and etcd fail. The plugins permit the proof by a detach, so
// other hosts take over the volumes of lost hosts. The SAN sees no violation. The checker porcupine accepts the
// history by the rules of holdModel. The tokens of each volume only grow. After all faults, holds, mounts and
// attachments agree with the claims. The disks have all acknowledged writes. (I1, I3, I4, I7, I8, I10, I11)
//
// A plan depends on the seed alone. The clients and the hosts run concurrently, so a seed that found a defect may
// need several runs to find it again. `make cluster-chaos` runs with all faults.
func TestClusterChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes too long under the race detector")
	}
	t.Parallel()
	c := newClusterChaos(t)
	ctx, calm := context.WithCancel(t.Context())
	defer calm()
	c.disturbing = ctx
	t.Logf("seed %d: make cluster-chaos SEED=%d", c.seed, c.seed)
	for _, s := range c.stations {
		for _, u := range s.users {
			c.work.Go(u.run)
		}
	}
	defer func() { // a failed test must not leave users
		c.phase.Store(phaseEnd)
		for _, s := range c.stations {
			s.quiet.Store(false)
			for _, u := range s.users {
				u.given.Store(true)
			}
		}
		c.work.Wait()
	}()

	c.disturb(max(*clusterChaosFor, chaosShort))
	c.endFaults()
	healed := time.Now()
	c.phase.Store(phaseTidy)
	calm()
	c.settle(*clusterChaosWithin + 30*time.Second)
	c.awaitTidy()
	c.expectAgreement("the end of all faults", healed)

	c.phase.Store(phaseEnd)
	ended := make(chan struct{})
	go func() {
		c.work.Wait()
		close(ended)
	}()
	c.Hosts[0].Await("the end of all claims", func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	c.expectAgreement("the end of all claims", time.Now())
	c.expectNoKeys()
	c.check()
	c.checkTokens(c.singleNode()...)
	c.acked.check(c)
	t.Logf("seed %d, %d detaches for another host\n%s", c.seed, c.takeovers(), &c.counts)
}

// takeovers returns the number of attachments that a host has ended for another one.
func (c *clusterChaos) takeovers() (n int) {
	for _, e := range c.san.Events() {
		if e.Kind == san.KindAnswer && e.Method == "ControllerUnpublishVolume" && e.Node != e.Target && e.Code == "OK" {
			n++
		}
	}
	return n
}

// newClusterChaos starts the hosts, and registers the volumes.
func newClusterChaos(t *testing.T) *clusterChaos {
	t.Helper()
	c := &clusterChaos{field: &field{t: t, san: lab.StartSAN(t)}, chronicle: newChronicle(t), seed: *clusterChaosSeed}
	for c.seed == 0 {
		c.seed = rand.Uint64()
	}
	with := []lab.Option{lab.WithEtcd(chaosMembers), lab.Clustered()}
	if *clusterChaosFor > 0 {
		with, c.clock = append(with, lab.WithFailpoints()), harness.BuildWallClock(t)
	}
	c.Lab = lab.New(t, chaosHosts, with...)
	for i, h := range c.Hosts {
		if c.clock.Program != "" {
			c.clock.Use(h.Host)
		}
		h.OmitFlags, h.MoreArgs = append(h.OmitFlags, "--log-level"), append(h.MoreArgs, "--log-level", "info")
		addDriver(h.Host, c.san, h.Name, attachAndStage, "fence: detach")
		h.Launch()
		s := &station{Host: h, number: i, client: apiclient.New(h.Socket())}
		t.Cleanup(s.client.Close)
		for n := range usersPerHost {
			stream := uint64(i*usersPerHost + n)
			s.users = append(s.users, &chaosUser{clusterChaos: c, station: s, name: fmt.Sprintf("c%d", stream), dice: rand.New(rand.NewPCG(c.seed, stream))})
		}
		c.stations = append(c.stations, s)
	}
	for _, h := range c.Hosts {
		h.Volctl("wait", "--plugin", "san", "--timeout", "60s")
	}
	for i := range chaosVolumes {
		v := choices[i%len(choices)]
		v.id = fmt.Sprintf("%s-%d", v.id, i)
		c.volumes = append(c.volumes, v)
		var modes []string
		for _, m := range v.modes {
			modes = append(modes, "{access_mode: "+m+"}")
		}
		shareOn(c.Hosts[0].Host, c.san, v.id, "capabilities: ["+strings.Join(modes, ", ")+"]")
	}
	return c
}

// singleNode returns the volumes that have only modes for one host.
func (c *clusterChaos) singleNode() (ids []string) {
	for _, v := range c.volumes {
		if !slices.ContainsFunc(v.modes, func(m string) bool { return !strings.HasPrefix(m, "single-node") }) {
			ids = append(ids, v.id)
		}
	}
	return ids
}

// steady reports whether the users of the host know all its claims.
func (s *station) steady() bool { return s.since.Load() == 0 }

// unsureFrom returns the time in the chronicle since when the host may have lost claims, although its users
// know all that it had then. It returns 0 if the host loses none.
func (s *station) unsureFrom() int64 {
	if !s.unsure.Load() {
		return 0
	}
	return max(s.verified.Load(), 1)
}

// ask calls do with a deadline.
func (s *station) ask(within time.Duration, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return do(ctx)
}

// ledger contains the acknowledged writes: the content of each file, by the path in the SAN's own file
// system.
type ledger struct {
	mu    sync.Mutex
	files map[[2]string]string // the key has the volume and the name of the file
}

// add adds a file that a client has written and synchronised.
func (l *ledger) add(volume, name, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.files == nil {
		l.files = map[[2]string]string{}
	}
	l.files[[2]string{volume, name}] = text
}

// check compares the disks with all acknowledged writes.
func (l *ledger) check(c *clusterChaos) {
	c.t.Helper()
	dirs := map[string]string{}
	for _, d := range c.san.Disks() {
		dirs[d.ID] = d.Dir
	}
	for key, text := range l.files {
		got, err := os.ReadFile(filepath.Join(dirs["disk-"+key[0]], key[1]))
		if err != nil || string(got) != text {
			c.t.Errorf("the acknowledged file %s of volume %s has %q (%v), and not %q", key[1], key[0], got, err, text)
		}
	}
	c.t.Logf("%d acknowledged files are on the disks", len(l.files))
	if len(l.files) == 0 {
		c.t.Error("no write was acknowledged")
	}
}
