package cluster_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/crasher"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

var crashFull = flag.Bool("crash.full", false, "try every point of every scenario, with each victim")

// scenario is an operation on the first host of a cluster with two hosts. The operation may be
// interrupted at any point. After that, repeating it must succeed.
type scenario struct {
	name   string
	before func(r *rig)                        // prepares the cluster
	act    func(r *rig, timeout string) string // does the operation, and returns its error text
}

var scenarios = []scenario{
	{
		name:   "claim",
		before: func(*rig) {},
		act: func(r *rig, timeout string) string {
			return r.hosts[0].Try("volume", "claim", "db", "--alloc", "web", "--timeout", timeout).Err
		},
	},
	{
		name:   "detach",
		before: func(r *rig) { claim(r.hosts[0], "db", "web") },
		act: func(r *rig, timeout string) string {
			return r.hosts[0].Try("volume", "detach", "db", "web", "--ignore-not-found", "--timeout", timeout).Err
		},
	},
}

// victims are the processes that die at a point.
var victims = []struct {
	name        string
	agent, etcd bool
}{
	{"agent", true, false},
	{"etcd", false, true},
	{"agent and etcd", true, true},
}

// TestCrash kills the agent, etcd, or both, before and after each commit, each call to the driver and
// each transaction of an operation. After both run again, the operation succeeds when it is
// repeated, the other host can use the volume, and nothing is left in etcd and in the storage. The
// SAN sees no two hosts at the same time. (I1, I2, I4, I10, I11)
func TestCrash(t *testing.T) {
	for _, driver := range []struct {
		name string
		san  san.Config
	}{
		{"attach", san.Config{Attach: true, Stage: true}},
		{"node only", san.Config{NodeOnly: true, Stage: true}},
	} {
		for _, s := range scenarios {
			t.Run(s.name+" "+driver.name, func(t *testing.T) {
				t.Parallel()
				var points []string
				t.Run("nobody dies", func(t *testing.T) { points = s.run(t, driver.san, crasher.Order{}) })
				if t.Failed() {
					return
				}
				t.Logf("points: %q", points)
				for _, v := range victims {
					for _, at := range chosen(len(points)) {
						t.Run(fmt.Sprintf("%s dies at %d %s", v.name, at, points[at-1]), func(t *testing.T) {
							t.Parallel()
							s.run(t, driver.san, crasher.Order{At: at, Agent: v.agent, Plugin: map[bool]int{true: -1}[v.etcd]})
						})
					}
				}
			})
		}
	}
}

// chosen returns the numbers of the points at which the victim dies: all with -crash.full, and two
// random ones otherwise.
func chosen(n int) []int {
	all := rand.Perm(n)
	for i := range all {
		all[i]++
	}
	if !*crashFull {
		all = all[:min(n, 2)]
	}
	slices.Sort(all)
	return all
}

// run does the operation, with a kill at the point of the order, and checks the result. It returns
// the points that the agent reached.
func (s scenario) run(t *testing.T, driver san.Config, o crasher.Order) []string {
	r := newRig(t, 1, 0, driver)
	orders := t.TempDir()
	a := r.prepare("h1", driver)
	r.hosts = append(r.hosts, a)
	launch(a, orders)
	r.hosts = append(r.hosts, r.start("h2", driver))
	r.share("db", mode("single-node-multi-writer"))
	s.before(r)

	if o.Plugin < 0 {
		o.Plugin = r.etcd.PID(0)
	}
	o.Run = 1
	a.Must(o.Give(orders))
	s.act(r, "3s")
	a.Must(os.Remove(filepath.Join(orders, "order")))
	points, err := crasher.PointsOf(orders, 1)
	a.Must(err)
	if died := len(points) >= o.At && o.At > 0; died { // commits may join, so a run may have fewer points
		if o.Plugin != 0 {
			r.etcd.AwaitEnd(0)
			r.etcd.Start(0)
		}
		if o.Agent {
			_ = a.Cmd.Wait()
			a.Start("san")
		}
	}

	if said := s.act(r, "40s"); said != "" {
		t.Errorf("repeated: %s", said)
	}
	if said := a.Try("volume", "detach", "db", "web", "--ignore-not-found", "--timeout", "40s"); said.Code != 0 {
		t.Error(said.Err)
	}
	b := r.hosts[1]
	path := claim(b, "db", "web", "--timeout", "40s")
	b.Must(write(b, path, "f", "x"))
	b.Volctl("volume", "detach", "db", "web")
	r.awaitGone()
	r.expectFree("db")
	return points
}

// launch starts the crashing agent of a host.
func launch(h *harness.Host, orders string) {
	h.T.Helper()
	self, err := os.Executable()
	h.Must(err)
	h.Cmd = exec.Command(self, h.Args()...)
	h.Cmd.Env, h.Cmd.Stderr = append(h.Env, crasher.Env+"="+orders), h.Log
	h.Must(h.Cmd.Start())
	h.Volctl("wait", "--plugin", "san", "--timeout", "60s")
}

// expectFree checks that etcd shows no hold, no call and no user of a volume.
func (r *rig) expectFree(id string) {
	r.t.Helper()
	for _, kv := range r.keys() {
		switch {
		case strings.HasPrefix(kv.Key, "holds/"), strings.HasPrefix(kv.Key, "calls/"), strings.HasPrefix(kv.Key, "users/"):
			r.t.Errorf("etcd still has %s: %s", kv.Key, kv.Value)
		case kv.Key == "use/"+id && strings.Contains(string(kv.Value), "access"):
			r.t.Errorf("etcd shows the volume as used: %s", kv.Value)
		}
	}
}
