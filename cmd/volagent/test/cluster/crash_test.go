package cluster_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/crasher"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

var (
	crashFull = flag.Bool("crash.full", false, "try every point of every scenario, with each victim")
	crashSeed = flag.Uint64("crash.seed", 0, "seed of the random points of TestCrash; 0 chooses one")
)

// scenario is an operation on the first host of a cluster with two hosts. The operation may be
// interrupted at any point. After that, repeating it must succeed.
type scenario struct {
	name   string
	before func(r *rig)                        // prepares the cluster
	act    func(r *rig, timeout string) string // does the operation, and returns its error text
	after  func(r *rig)                        // checks the result
	sans   []san.Config                        // the drivers with which the scenario runs
	cast   cast                                // nil means twoHosts
}

// These are the drivers of the scenarios.
var (
	attaching    = san.Config{Attach: true, Stage: true}
	nodeOnly     = san.Config{NodeOnly: true, Stage: true}
	provisioned  = san.Config{Attach: true, Stage: true, Provision: true, Expand: true}
	claimDrivers = []san.Config{attaching, nodeOnly}
	multi        = mode("single-node-multi-writer")
)

var scenarios = []scenario{
	{
		name:   "claim",
		before: func(r *rig) { r.share("db", multi) },
		act: func(r *rig, timeout string) string {
			return r.hosts[0].Try("volume", "claim", "db", "--alloc", "web", "--timeout", timeout).Err
		},
		after: moves, sans: claimDrivers,
	},
	{
		name:   "detach",
		before: func(r *rig) { r.share("db", multi); claim(r.hosts[0], "db", "web") },
		act: func(r *rig, timeout string) string {
			return r.hosts[0].Try("volume", "detach", "db", "web", "--ignore-not-found", "--timeout", timeout).Err
		},
		after: moves, sans: claimDrivers,
	},
	{
		name:   "create",
		before: func(r *rig) { r.create("db.yaml") },
		act: func(r *rig, _ string) string {
			return repeatable(r.hosts[0].Try("volume", "create", r.file("db.yaml")))
		},
		after: func(r *rig) {
			r.expectDisks(1, 1<<20)
			moves(r)
			r.hosts[1].Volctl("volume", "delete", "db", "-y")
			r.expectNothing()
		},
		sans: []san.Config{provisioned},
	},
	{
		name:   "delete",
		before: func(r *rig) { r.hosts[0].Volctl("volume", "create", r.create("db.yaml")) },
		act:    func(r *rig, _ string) string { return deleted(r.hosts[0].Try("volume", "delete", "db", "-y")) },
		after: func(r *rig) {
			r.expectNothing()
			r.hosts[1].Volctl("volume", "create", r.file("db.yaml")) // its successor has another name
			r.expectDisks(1, 1<<20)
		},
		sans: []san.Config{provisioned},
	},
	{
		name:   "expand",
		before: func(r *rig) { r.hosts[0].Volctl("volume", "create", r.create("db.yaml")) },
		act: func(r *rig, timeout string) string {
			return repeatable(r.hosts[0].Try("volume", "expand", "db", "2MiB", "--timeout", timeout))
		},
		after: func(r *rig) { r.expectDisks(1, 2<<20); moves(r) },
		sans:  []san.Config{provisioned},
	},
	{
		name:   "share",
		before: func(r *rig) { r.own("db") },
		act:    func(r *rig, _ string) string { return repeatable(r.hosts[0].Try("volume", "share", "db", "--force")) },
		after:  moves, sans: []san.Config{attaching},
	},
	{
		name:   "share while mounted",
		before: func(r *rig) { r.own("db"); claim(r.hosts[0], "db", "web") },
		act:    func(r *rig, _ string) string { return repeatable(r.hosts[0].Try("volume", "share", "db", "--force")) },
		after:  moves, sans: []san.Config{attaching},
	},
	{
		name:   "unshare",
		before: func(r *rig) { r.share("db", multi); claim(r.hosts[0], "db", "web") },
		act:    func(r *rig, _ string) string { return repeatable(r.hosts[0].Try("volume", "unshare", "db")) },
		after: func(r *rig) {
			a, b := r.hosts[0], r.hosts[1]
			b.ExpectRefusal(3, "no volume", "volume", "claim", "db", "--alloc", "web", "--timeout", "1s")
			r.expectNothing()
			a.Volctl("volume", "detach", "db", "web")
			a.Volctl("volume", "share", "db", "--force")
			moves(r)
		},
		sans: []san.Config{attaching},
	},
}

// repeatable returns the error text of a command.
func repeatable(r harness.Result) string {
	if r.Code == 0 {
		return ""
	}
	return r.Err
}

// deleted returns the error text of a delete. A volume that is gone is no error.
func deleted(r harness.Result) string {
	if strings.Contains(r.Err, `no volume "db"`) {
		return ""
	}
	return repeatable(r)
}

// moves checks that the other host can use the volume after the first one, and that both give it up.
func moves(r *rig) {
	r.t.Helper()
	a, b := r.hosts[0], r.hosts[1]
	if said := a.Try("volume", "detach", "db", "web", "--ignore-not-found", "--timeout", "40s"); said.Code != 0 {
		r.t.Error(said.Err)
	}
	path := claim(b, "db", "web", "--timeout", "40s")
	b.Must(write(b, path, "f", "x"))
	b.Volctl("volume", "detach", "db", "web")
	r.awaitGone()
	r.expectFree("db")
}

// file returns the path of a volume file on the first host.
func (r *rig) file(name string) string { return filepath.Join(r.hosts[0].Dir, name) }

// create writes the file of a new shared volume, and returns its path.
func (r *rig) create(name string) string {
	r.t.Helper()
	text := "id: db\nplugin_id: san\nscope: shared\ncapacity_min: 1MiB\n" + multi + "\n"
	r.hosts[0].Must(os.WriteFile(r.file(name), []byte(text), 0o600))
	return r.file(name)
}

// own adds a disk to the SAN, and registers it as a volume of the first host.
func (r *rig) own(id string) {
	r.t.Helper()
	ownOn(r.hosts[0], r.san, id)
}

// ownOn is own for any host.
func ownOn(h *harness.Host, s *san.SAN, id string) {
	h.T.Helper()
	h.Must(s.AddDisk("disk-"+id, 1<<20))
	file := filepath.Join(h.Dir, id+".yaml")
	h.Must(os.WriteFile(file, []byte("id: "+id+"\nplugin_id: san\nexternal_id: disk-"+id+"\n"+multi+"\n"), 0o600))
	h.Volctl("volume", "register", file)
}

// expectDisks checks how many disks the SAN has, and their size.
func (r *rig) expectDisks(n int, size int64) {
	r.t.Helper()
	all := r.san.Disks()
	if len(all) != n {
		r.t.Errorf("the SAN has the disks %+v, want %d", all, n)
	}
	for _, d := range all {
		if d.Size != size {
			r.t.Errorf("disk %s has %d bytes, want %d", d.ID, d.Size, size)
		}
	}
}

// expectNothing checks that neither etcd nor, for a provisioned volume, the SAN has anything left of a
// volume.
func (r *rig) expectNothing() {
	r.t.Helper()
	for _, kv := range r.keys() {
		for _, prefix := range []string{"volumes/", "external/", "use/", "users/", "calls/", "holds/", "notices/"} {
			if strings.HasPrefix(kv.Key, prefix) {
				r.t.Errorf("etcd still has %s: %s", kv.Key, kv.Value)
			}
		}
	}
	for _, d := range r.san.Disks() {
		if d.Name != "" {
			r.t.Errorf("the SAN still has disk %+v", d)
		}
	}
}

// victim names the processes that die at a point.
type victim struct {
	name        string
	agent, etcd bool
}

// victims are all victims.
var victims = []victim{
	{"agent", true, false},
	{"etcd", false, true},
	{"agent and etcd", true, true},
}

// TestCrash kills the agent, etcd, or both, before and after each commit, each call to the driver and
// each transaction of an operation. After both run again, the operation succeeds when it is
// repeated, the other host can use the volume, and nothing is left in etcd and in the storage. A
// create makes one storage volume. The SAN sees no two hosts at the same time. After the kill, one host
// alone makes the calls that end an attachment, and each attachment ends once. The first host may have no
// controller; then it or the host that makes its calls dies. (I1, I2, I4, I10, I11)
func TestCrash(t *testing.T) {
	seed := seedOf(t, "crash.seed", *crashSeed)
	for _, s := range slices.Concat(scenarios, lentScenarios()) {
		for _, driver := range s.sans {
			name := s.name
			if driver.NodeOnly {
				name += " node only"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				var points []string
				t.Run("nobody dies", func(t *testing.T) { points = s.run(t, driver, crasher.Order{}) })
				if t.Failed() {
					return
				}
				t.Logf("points: %q", points)
				for _, at := range chosen(points, seed, name, *crashFull) {
					for _, v := range at.victims {
						t.Run(fmt.Sprintf("%s dies at %d %s", v.name, at.point, points[at.point-1]), func(t *testing.T) {
							t.Parallel()
							s.run(t, driver, crasher.Order{At: at.point, Agent: v.agent, Plugin: map[bool]int{true: -1}[v.etcd]})
						})
					}
				}
			})
		}
	}
}

// death is a point at which victims die.
type death struct {
	point   int
	victims []victim
}

// chosen returns the points at which victims die. In a full test, each victim dies at each point.
// Otherwise each victim dies at one random point. Commits may join, so a repeated run may have other
// numbers. The choice therefore depends on the name of a point, and on how often the name came before.
func chosen(points []string, seed uint64, scenario string, full bool) (all []death) {
	if full {
		for i := range points {
			all = append(all, death{i + 1, victims})
		}
		return all
	}

	for i, v := range victims {
		best, most, seen := 0, uint64(0), map[string]int{}
		for k, name := range points {
			seen[name]++
			purpose := fmt.Sprintf("%s, %s, %s, %d", scenario, v.name, name, seen[name])
			if drawn := diceOf(seed, purpose).Uint64(); drawn >= most {
				best, most = k, drawn
			}
		}
		all = append(all, death{best + 1, victims[i : i+1]})
	}
	slices.SortStableFunc(all, func(a, b death) int { return a.point - b.point })
	return all
}

// run does the operation, with a kill at the point of the order, and checks the result. It returns
// the points that the agent reached.
func (s scenario) run(t *testing.T, driver san.Config, o crasher.Order) []string {
	r := newRig(t, 1, 0, driver)
	orders := t.TempDir()
	a := s.start(r, driver, orders)
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
	mark := 0
	if died := len(points) >= o.At && o.At > 0; died { // commits may join, so a run may have fewer points
		if o.Plugin != 0 {
			r.etcd.AwaitEnd(0)
			r.etcd.Start(0)
		}
		if o.Agent {
			_ = a.Cmd.Wait()
			mark = len(r.san.Events())
			a.Start("san")
		}
	}

	said := s.act(r, "40s")
	for end := time.Now().Add(40 * time.Second); said != "" && time.Now().Before(end); said = s.act(r, "40s") {
		a.Await("etcd", func() bool { return a.Try("node", "list").Code == 0 }) // the host may still be registering
	}
	if said != "" {
		t.Errorf("repeated: %s", said)
	}
	s.after(r)
	r.expectOneUndoer(mark)
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
		case strings.HasPrefix(kv.Key, "holds/"), strings.HasPrefix(kv.Key, "calls/"), strings.HasPrefix(kv.Key, "users/"), strings.HasPrefix(kv.Key, "moves/"):
			r.t.Errorf("etcd still has %s: %s", kv.Key, kv.Value)
		case kv.Key == "use/"+id && strings.Contains(string(kv.Value), "access"):
			r.t.Errorf("etcd shows the volume as used: %s", kv.Value)
		}
	}
}
