package cluster_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

var (
	historySeed  = flag.Uint64("history.seed", 0, "seed of the random operations of TestHistory; 0 chooses one")
	historyCount = flag.Int64("history.count", 2000, "number of the random operations of TestHistory")
)

// hostCount is the number of hosts of TestHistory.
const hostCount = 3

// clientsPerHost is the number of clients of each host in a history. Each client sends one request at
// a time.
const clientsPerHost = 4

// traffic sends random requests to three agents, and records the history.
type traffic struct {
	*rig
	*chronicle
	clients []*apiclient.Client // one for each host
	gates   []sync.RWMutex      // closed while the agent of the host does not run
	left    atomic.Int64        // the number of requests that clients may still send
}

// choice is a volume with the modes in which clients claim it.
type choice struct {
	id    string
	modes []string
}

var choices = []choice{
	{"one", []string{"single-node-multi-writer"}},
	{"mixed", []string{"multi-node-single-writer"}},
	{"many", []string{"multi-node-multi-writer", "single-node-multi-writer"}},
	{"all", []string{"single-node-multi-writer", "multi-node-single-writer", "multi-node-multi-writer"}},
}

// TestHistory sends random claims, detaches and status requests to three hosts, and records the
// answers. Meanwhile it restarts etcd and kills an agent. The checker porcupine accepts the history
// if each request can have happened at one moment between its begin and its end, by the rules of
// holdModel. The SAN, which accepts all attachments, sees no two writers. Meanwhile the tokens of a
// volume only grow. (I1, I2, I7, I8)
func TestHistory(t *testing.T) {
	t.Parallel()
	seed := *historySeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat the choices of this run with -history.seed=%d -history.count=%d", seed, *historyCount)
	r := newRig(t, 1, hostCount, san.Config{Attach: true, Stage: true})
	tr := &traffic{rig: r, chronicle: newChronicle(t), gates: make([]sync.RWMutex, hostCount)}
	tr.left.Store(*historyCount)
	for _, h := range r.hosts {
		tr.clients = append(tr.clients, apiclient.New(h.Socket()))
	}
	for _, c := range choices {
		var modes []string
		for _, m := range c.modes {
			modes = append(modes, "{access_mode: "+m+"}")
		}
		r.share(c.id, "capabilities: ["+strings.Join(modes, ", ")+"]")
	}
	r.share("probe", mode("single-node-multi-writer"))

	var work sync.WaitGroup
	for i := range hostCount * clientsPerHost {
		work.Go(func() {
			u := &user{traffic: tr, name: fmt.Sprintf("c%d", i), host: i % hostCount, dice: rand.New(rand.NewPCG(seed, uint64(i)))}
			u.run()
		})
	}
	tr.disturb(rand.New(rand.NewPCG(seed, 1000)))
	work.Wait()

	tr.check()
	tr.checkTokens(choices[0].id)
	r.awaitGone()
	for _, c := range choices {
		r.expectFree(c.id)
	}
}

// disturb restarts etcd after a third of the requests, and kills an agent after two thirds.
func (tr *traffic) disturb(dice *rand.Rand) {
	tr.t.Helper()
	tr.awaitLeft(*historyCount * 2 / 3)
	tr.outage(func() {
		tr.etcd.Kill(0)
		time.Sleep(time.Duration(dice.IntN(1000)) * time.Millisecond) // the length of an outage
		tr.etcd.Start(0)
	})

	tr.awaitLeft(*historyCount / 3)
	victim := dice.IntN(hostCount)
	tr.outage(func() {
		h := tr.hosts[victim]
		killed := make(chan struct{})
		go func() {
			tr.gates[victim].Lock() // waits for the requests in flight, which the kill ends
			close(killed)
		}()
		h.Kill()
		<-killed
		h.Start("san")
		tr.gates[victim].Unlock()
	})
}

// awaitLeft waits until at most n requests are left.
func (tr *traffic) awaitLeft(n int64) {
	tr.t.Helper()
	tr.hosts[0].Await(fmt.Sprintf("%d requests left", n), func() bool { return tr.left.Load() <= n })
}

// outage calls do, and waits until every host uses the cluster again.
func (tr *traffic) outage(do func()) {
	tr.t.Helper()
	over := tr.beginOutage()
	do()
	for _, h := range tr.hosts {
		claim(h, "probe", "probe", "--timeout", "60s")
		h.Volctl("volume", "detach", "probe", "probe", "--timeout", "60s")
	}
	over()
}

// user is one client of one host.
type user struct {
	*traffic
	name  string
	host  int
	dice  *rand.Rand
	names int       // the number of allocs that the client has used
	held  []request // its claims that are mounted
}

// run sends requests until none are left, and then detaches all claims.
func (u *user) run() {
	for u.left.Add(-1) >= 0 {
		switch n := u.dice.IntN(100); {
		case n < 20:
			u.status()
		case len(u.held) == 2, len(u.held) == 1 && n < 70:
			u.detach(u.dice.IntN(len(u.held)))
		default:
			u.claim()
		}
	}
	for len(u.held) > 0 {
		u.detach(0)
	}
}

// send sends one request to the agent of the client's host while the agent runs.
func (u *user) send(do func(ctx context.Context, c *apiclient.Client) error) (from, to int64, err error) {
	u.gates[u.host].RLock()
	defer u.gates[u.host].RUnlock()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	from = u.now()
	err = do(ctx, u.clients[u.host])
	return from, u.now(), err
}

// claim claims a random volume in a random mode.
func (u *user) claim() {
	c := choices[u.dice.IntN(len(choices))]
	u.names++
	q := request{kind: kindClaim, volume: c.id, host: u.host, alloc: fmt.Sprintf("%s-%d", u.name, u.names), access: c.modes[u.dice.IntN(len(c.modes))]}
	readOnly := u.dice.IntN(2) == 0
	q.reader = readOnly && q.access == "multi-node-single-writer"
	wait := []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, time.Second}[u.dice.IntN(3)]
	var got *api.Claim
	from, to, err := u.send(func(ctx context.Context, c *apiclient.Client) (err error) {
		got, err = c.ClaimVolume(ctx, q.volume, q.alloc, api.ClaimRequest{AccessMode: q.access, ReadOnly: readOnly}, wait)
		return err
	})
	if err == nil {
		u.held = append(u.held, q)
		u.record(u.host, q, answer{done: true}, from, to)
		if !readOnly && u.dice.IntN(4) == 0 {
			u.write(got.Path)
		}
		return
	}

	u.record(u.host, q, answer{holders: namedHolders(err), text: err.Error()}, from, to)
	q.kind = kindCleanUp
	end, err := u.end(q)
	if err != nil {
		u.fail("%s on h%d: the refused claim of %s does not end: %v", q.volume, u.host+1, q.alloc, err)
	}
	u.record(u.host, q, answer{done: true}, to, end)
}

// detach detaches one of the client's claims.
func (u *user) detach(i int) {
	q := u.held[i]
	u.held = slices.Delete(u.held, i, i+1)
	q.kind = kindDetach
	from := u.now()
	to, err := u.end(q)
	if err != nil {
		u.fail("%s on h%d: cannot detach %s: %v", q.volume, u.host+1, q.alloc, err)
	}
	u.record(u.host, q, answer{done: true}, from, to)
}

// end detaches a claim until its host says that the claim is gone. It returns the time of this answer.
func (u *user) end(q request) (to int64, err error) {
	for sent := 0; ; sent++ {
		_, to, err = u.send(func(ctx context.Context, c *apiclient.Client) error {
			return c.DetachClaim(ctx, q.volume, q.alloc, apiclient.DetachOptions{Wait: 60 * time.Second})
		})
		code := harness.CodeOf(err)
		gone := code == api.CodeNotFound && (q.kind == kindCleanUp || sent > 0)
		if err == nil || gone {
			return to, nil
		}
		if code != api.CodeUnreachable {
			return to, err
		}
	}
}

// write writes a file of a claimed volume.
func (u *user) write(path string) {
	out, err := exec.Command("sh", "-c", `echo x > "$1"`, "sh", filepath.Join(path, u.name)).CombinedOutput()
	if err != nil {
		u.fail("%s cannot write: %v: %s", u.name, err, out)
	}
}

// status asks for the holds on a random volume.
func (u *user) status() {
	q := request{kind: kindStatus, volume: choices[u.dice.IntN(len(choices))].id, host: u.host}
	var v *api.Volume
	var warnings []string
	from, to, err := u.send(func(ctx context.Context, c *apiclient.Client) (err error) {
		v, warnings, err = c.AnyVolume(ctx, q.volume)
		return err
	})
	if err != nil || len(warnings) > 0 {
		return // the host does not reach etcd
	}
	a := answer{done: true, seen: u.sight(q.volume, v.Holds, span{from, to})}
	u.record(u.host, q, a, from, to)
}
