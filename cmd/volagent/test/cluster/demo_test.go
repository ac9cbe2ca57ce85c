package cluster_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/cluster"
	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/wire"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// show makes TestDemo print its commands and their output. `make cluster-demo` sets it.
var show = flag.Bool("cluster.show", false, "print the commands of TestDemo and their output")

// TestDemo shows the main job of a cluster: a volume moves between three hosts. Each host has a member
// of the bundled etcd, and a network of its own. The SAN judges each write. A host is lost, and the others
// take its volumes over.
// `make cluster-demo` runs this test and shows its commands. (I1, I3, I5)
func TestDemo(t *testing.T) {
	if !*show {
		t.Parallel()
	}
	d := newDemo(t)

	d.step("1. Three hosts make a cluster, with the bundled etcd")
	d.makeCluster()
	d.step("2. A shared volume is visible on all hosts")
	d.register("san", "db", "single-node-multi-writer", "multi-node-multi-writer")
	d.step("3. The first host claims the volume, and all hosts see that")
	d.firstClaim()
	d.step("4. Another host cannot have the volume at the same time")
	d.refuseClaims()
	d.step("5. Two volumes never share an id or a disk, and the cluster forgets no volume in use")
	d.refuseDefinitions()
	d.step("6. A host gets no volume while it drains, and no host takes the place of a living one")
	d.refuseHosts()
	d.step("7. The volume moves to the other host, with its data")
	d.move()
	d.step("8. Several hosts may read, and one host may write")
	d.register("san", "site", "multi-node-single-writer")
	d.readers()
	d.step("9. etcd stops on all hosts, and the volumes in use do not notice it")
	d.outage()
	d.step("10. etcd starts again, and the hosts finish their work")
	d.recover()
	d.step("11. A host loses its power while it writes, and another host takes the volume over by proof")
	d.loseHost()
	d.step("12. Without a proof, no host gets the volume, until a person says that the host is off")
	d.fenceByPerson()
	d.step("13. The lost host returns, and has lost what was taken from it")
	d.returnHost()
	d.step("14. Clean up")
	d.cleanUp()

	if !t.Failed() {
		d.print("\nall of this worked\n")
	}
}

// demo is the cluster of TestDemo. Its methods end the test when a command or a check fails.
type demo struct {
	t       *testing.T
	san     *san.SAN
	a, b, c *lab.Host
	hosts   []*lab.Host
	etcd    []*lab.Process // volagent-etcd of each host

	path, moved, last string // where the volume db is mounted on hosts a, b and c
}

// newDemo makes three hosts whose plugins use the disks of a SAN. The plugin san has "fence: detach", and
// the plugin plain has no fence. It starts no process on the hosts.
func newDemo(t *testing.T) *demo {
	t.Helper()
	s, err := san.Start(harness.NewHost(t).Mkdir("san"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	s.SetPermissive(true) // it judges, and does not help the hosts by a refusal
	l := lab.New(t, 3)
	d := &demo{t: t, san: s, hosts: l.Hosts, a: l.Hosts[0], b: l.Hosts[1], c: l.Hosts[2]}
	self, err := os.Executable()
	d.a.Must(err)
	for _, h := range d.hosts {
		t.Cleanup(func() { d.logEtcd(h) })
		h.Env = append(h.Env, "VOLAGENT_ETCD_DIR="+d.etcdDir(h), "VOLAGENT_CONFIG_DIR="+h.Dir)
		for plugin, more := range map[string]string{"san": `, "fence": "detach"`, "plain": ""} {
			file, err := s.Driver(h.Name, san.Config{Attach: true, Stage: true}).PluginFile(plugin, self)
			h.Must(err)
			text := strings.TrimSuffix(strings.TrimSpace(string(file)), "}") + more + "}\n"
			h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", plugin+".yaml"), []byte(text), 0o600))
		}
	}
	return d
}

func (d *demo) etcdDir(h *lab.Host) string { return filepath.Join(h.Dir, "etcd") }

// makeCluster makes a cluster of the three hosts, and starts their agents.
func (d *demo) makeCluster() {
	d.run(d.a, "volctl", "cluster", "init", "--no-start")
	d.startEtcd(d.a)
	for _, h := range d.hosts[1:] {
		d.print("  %s $ volctl cluster token -q | ssh %s volctl cluster join --no-start\n", d.a.Name, h.Name)
		token := ""
		d.a.Await("a token for "+h.Name, func() bool {
			r := d.a.Run(programs([]string{"volctl", "cluster", "token", "-q"})...)
			token = r.Out
			return r.Code == 0
		})
		h.Must(os.WriteFile(filepath.Join(h.Dir, "token"), []byte(token), 0o600))
		h.MustRun(programs([]string{"volctl", "cluster", "join", "--no-start", "--token-file", filepath.Join(h.Dir, "token")})...)
		d.startEtcd(h)
	}
	d.a.Await("three voters, whose endpoints all agents know", func() bool {
		return !slices.ContainsFunc(d.hosts, func(h *lab.Host) bool { return !d.ready(h) })
	})
	d.run(d.a, "volctl", "cluster", "status")
	d.proof("each host runs a voting member of etcd")

	for _, h := range d.hosts {
		d.print("  %s $ volagent &\n", h.Name)
		h.Start("san", "plain")
	}
	d.await(d.b, "three hosts", func(out string) bool { return strings.Count(out, "ready") == 3 }, "volctl", "node", "list")
	d.proof("all agents are registered in the cluster")
}

// ready reports whether three members vote, and the agent's configuration on the host names them.
func (d *demo) ready(h *lab.Host) bool {
	d.t.Helper()
	r := h.Run(programs([]string{"volctl", "cluster", "status", "-o", "json"})...)
	var st wire.ClusterStatus
	if r.Code != 0 || json.Unmarshal([]byte(r.Out), &st) != nil {
		return false
	}
	voters := 0
	for _, m := range st.Hosts {
		if m.Voter && m.Healthy {
			voters++
		}
	}
	file, err := os.ReadFile(filepath.Join(h.Dir, "cluster.yaml"))
	h.Must(err)
	return voters == 3 && !slices.ContainsFunc(d.hosts, func(h *lab.Host) bool { return !strings.Contains(string(file), h.Address+":") })
}

// logEtcd prints the log of volagent-etcd of a host, and its cluster.yaml, if the test has failed.
func (d *demo) logEtcd(h *lab.Host) {
	if d.t.Failed() {
		d.t.Logf("volagent-etcd on %s:\n%s%s", h.Name, h.ReadFiles("etcd.log"), h.ReadFiles("cluster.yaml"))
	}
}

// startEtcd starts volagent-etcd of a host.
func (d *demo) startEtcd(h *lab.Host) {
	d.t.Helper()
	d.print("  %s $ volagent-etcd &\n", h.Name)
	log, err := os.OpenFile(filepath.Join(h.Dir, "etcd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	h.Must(err)
	defer log.Close()
	d.etcd = append(d.etcd, h.Spawn(log, filepath.Join(harness.BinDir, "volagent-etcd"), "--data-dir", d.etcdDir(h), "--config-dir", h.Dir))
}

// volumeFile writes the file of a shared volume, and returns its path.
func (d *demo) volumeFile(h *lab.Host, plugin, id, disk string, modes ...string) string {
	file := filepath.Join(h.Dir, id+".yaml")
	text := fmt.Sprintf("id: %s\nplugin_id: %s\nexternal_id: %s\nscope: shared\ncapabilities:\n", id, plugin, disk)
	for _, m := range modes {
		text += "  - access_mode: " + m + "\n"
	}
	h.Must(os.WriteFile(file, []byte(text), 0o600))
	d.run(h, "cat", file)
	return file
}

// register adds a disk to the SAN, and registers it as a shared volume.
func (d *demo) register(plugin, id string, modes ...string) {
	if err := d.san.AddDisk("disk-"+id, 1<<20); err != nil {
		d.t.Fatal(err)
	}
	file := d.volumeFile(d.a, plugin, id, "disk-"+id, modes...)
	d.a.Await("etcd to answer", func() bool { return d.a.Try("node", "list").Code == 0 }) // a busy machine delays it
	d.run(d.a, "volctl", "volume", "register", file)
	out := d.run(d.b, "volctl", "volume", "list")
	d.check(strings.Contains(out, id) && strings.Contains(out, "shared"), "%s sees volume %s without a registration of its own", d.b.Name, id)
}

// firstClaim claims the volume on host a, and looks at it from host b.
func (d *demo) firstClaim() {
	d.path = d.run(d.a, "volctl", "volume", "claim", "db", "--alloc", "web")
	d.run(d.a, "sh", "-c", "echo written on h1 > "+d.path+"/hello")
	d.proof("the volume is mounted on %s, and the SAN accepted the write", d.a.Name)

	for _, h := range []*lab.Host{d.b, d.c} {
		d.check(h.Run("stat", d.path+"/hello").Code != 0, "the mount does not exist on %s", h.Name)
	}
	d.await(d.b, "the hold with its claim", func(out string) bool {
		return strings.Contains(out, "attached") && strings.HasSuffix(strings.TrimSpace(out), " 1")
	}, "volctl", "volume", "status", "db")
	out := d.run(d.b, "volctl", "volume", "list")
	d.check(strings.Contains(out, d.a.Name), "%s shows that %s holds the volume", d.b.Name, d.a.Name)
	d.run(d.b, "volctl", "node", "list")
	out = d.run(d.b, "volctl", "node", "status", d.a.Name)
	d.check(strings.Contains(out, "db"), "%s shows the volumes of %s", d.b.Name, d.a.Name)
}

// move claims the volume on host b while host a has it. The claim waits until host a has detached.
func (d *demo) move() {
	d.print("  %s $ volctl volume claim db --alloc web --timeout 60s &\n", d.b.Name)
	waiting := d.b.StartVolctl("volume", "claim", "db", "--alloc", "web", "--timeout", "60s")
	d.await(d.b, "the waiting claim", func(out string) bool { return strings.Contains(out, "web") }, "volctl", "claim", "list")
	d.run(d.a, "volctl", "volume", "detach", "db", "web")
	r := <-waiting
	d.output(r.Out + r.Err)
	d.check(r.Code == 0, "the waiting claim on %s got the volume as soon as %s had given it up", d.b.Name, d.a.Name)
	d.moved = strings.TrimSpace(r.Out)

	out := d.run(d.b, "cat", filepath.Join(d.moved, "hello"))
	d.check(out == "written on h1", "the data of %s is there", d.a.Name)
	d.run(d.b, "sh", "-c", "echo written on h2 >> "+d.moved+"/hello")
	d.check(!strings.Contains(d.a.Mounts(), "san"), "%s has no mount of the volume left", d.a.Name)
}

// readers uses a volume with a writer and two readers.
func (d *demo) readers() {
	writer := d.run(d.a, "volctl", "volume", "claim", "site", "--alloc", "writer")
	d.run(d.a, "sh", "-c", "echo page > "+writer+"/index")
	for _, h := range []*lab.Host{d.b, d.c} {
		path := d.run(h, "volctl", "volume", "claim", "site", "--alloc", "reader", "--read-only")
		d.check(h.MustRun("cat", path+"/index") == "page", "%s reads what %s has written", h.Name, d.a.Name)
		d.check(h.Run("touch", path+"/new").Code != 0, "%s cannot write", h.Name)
	}
	d.await(d.c, "three holds", func(out string) bool {
		return !slices.ContainsFunc(d.hosts, func(h *lab.Host) bool { return !strings.Contains(out, h.Name) })
	}, "volctl", "volume", "status", "site")
	d.refused(d.c, 4, "as a reader", "volctl", "volume", "claim", "site", "--alloc", "writer", "--timeout", "1s")
	d.proof("a host with a reader does not become a second writer")
}

// outage stops etcd on all hosts. Host b holds the volume db.
func (d *demo) outage() {
	for i, p := range d.etcd {
		d.print("  %s $ kill -9 %d # volagent-etcd\n", d.hosts[i].Name, p.Inner)
		_ = p.End(9) // a killed process ends with an error
	}
	d.run(d.b, "sh", "-c", "echo written without etcd >> "+d.moved+"/hello")
	again := d.run(d.b, "volctl", "volume", "claim", "db", "--alloc", "backup")
	d.check(strings.HasSuffix(d.b.MustRun("cat", again+"/hello"), "written without etcd"), "another claim on %s works without etcd", d.b.Name)
	d.run(d.b, "volctl", "volume", "detach", "db", "backup")
	d.refused(d.c, 6, "etcd", "volctl", "volume", "claim", "db", "--alloc", "web", "--timeout", "2s")
	d.proof("a host without a hold gets none, and its error names etcd")
	d.run(d.b, "volctl", "volume", "detach", "db", "web")
	d.check(!strings.Contains(d.b.Mounts(), d.moved), "the detach has unmounted the volume, and its part in the cluster waits for etcd")
}

// recover starts etcd again.
func (d *demo) recover() {
	d.etcd = nil
	for _, h := range d.hosts {
		d.startEtcd(h)
	}
	d.last = d.run(d.c, "volctl", "volume", "claim", "db", "--alloc", "web", "--timeout", "60s")
	out := d.run(d.c, "cat", d.last+"/hello")
	d.check(out == "written on h1\nwritten on h2\nwritten without etcd", "%s got the volume, with the data of all hosts", d.c.Name)
}

// cleanUp ends all claims and deregisters the volumes. Nothing of them stays.
func (d *demo) cleanUp() {
	for _, id := range []string{"db", "logs"} {
		d.run(d.b, "volctl", "volume", "detach", id, "web")
	}
	d.run(d.a, "volctl", "volume", "detach", "site", "writer")
	for _, h := range []*lab.Host{d.b, d.c} {
		d.run(h, "volctl", "volume", "detach", "site", "reader")
	}
	d.a.Await("the end of all holds", func() bool { return len(d.keysOf("holds/", "users/", "calls/", "tasks/", "wanted/")) == 0 })
	for _, id := range []string{"db", "site", "logs"} {
		d.run(d.a, "volctl", "volume", "deregister", id)
	}
	left := d.keysOf("volumes/", "external/", "use/", "users/", "holds/", "calls/", "tasks/", "questions/", "answers/")
	d.check(len(left) == 0, "etcd keeps %d keys of the volumes", len(left))
	d.check(len(d.san.Attachments()) == 0, "no disk of the SAN is attached")
	for _, h := range d.hosts {
		d.check(!strings.Contains(h.Mounts(), "san:"), "%s has no mount of the SAN left", h.Name)
	}
	d.check(len(d.san.Violations()) == 0, "the SAN has seen %d violations: at no time could two hosts write to one disk", len(d.san.Violations()))
}

// keysOf returns the keys in etcd that begin with one of the given texts.
func (d *demo) keysOf(prefixes ...string) (keys []string) {
	d.t.Helper()
	self, err := os.Executable()
	d.a.Must(err)
	out := d.a.MustRun("env", keysChild+"="+d.etcdDir(d.a), self)
	for _, key := range strings.Fields(out) {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) }) {
			keys = append(keys, key)
		}
	}
	return keys
}

// keysChild is an environment variable that makes this test binary print all keys of the cluster. Its
// value is the directory of volagent-etcd. Only a process on a host reaches the etcd of that host.
const keysChild = "VOLAGENT_TEST_KEYS"

// printKeys is the program of keysChild.
func printKeys(dir string) int {
	if err := listKeys(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// listKeys prints all keys of the cluster in the etcd of a host.
func listKeys(dir string) (err error) {
	d := hostdir.Dir{Data: dir}
	s, err := d.Load()
	if err != nil {
		return err
	}
	store, err := cluster.Open(context.Background(), cluster.Options{
		Endpoints: []string{s.ClientURL()}, Prefix: s.Prefix,
		CA: d.Path(hostdir.CACert), Cert: d.Path(hostdir.AgentCert), Key: d.Path(hostdir.AgentKey),
	})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // the process ends
	page, err := store.Range(context.Background(), shared.Span{Key: "a", End: "{"}, 0, 0)
	for _, kv := range page.KVs {
		fmt.Println(kv.Key)
	}
	return err
}

// print writes to the terminal of a demo.
func (d *demo) print(format string, args ...any) {
	if *show {
		fmt.Printf(format, args...)
	}
}

func (d *demo) step(title string) { d.print("\n%s\n", title) }

func (d *demo) proof(format string, args ...any) { d.print("  ✓ "+format+"\n", args...) }

// check ends the test unless a condition is true.
func (d *demo) check(ok bool, format string, args ...any) {
	d.t.Helper()
	if !ok {
		d.print("  ✗ "+format+"\n", args...)
		d.t.Fatalf("this is not true: "+format, args...)
	}
	d.proof(format, args...)
}

// programs returns a command that finds the programs of this project.
func programs(argv []string) []string { return append([]string{"env"}, argv...) }

// command prints a command as a person types it on the host.
func (d *demo) command(h *lab.Host, argv []string) {
	line := strings.Join(argv, " ")
	if argv[0] == "sh" {
		line = argv[len(argv)-1]
	}
	d.print("  %s $ %s\n", h.Name, line)
}

// output prints the output of a command.
func (d *demo) output(text string) {
	for line := range strings.Lines(text) {
		d.print("    %s\n", strings.TrimRight(line, "\n"))
	}
}

// run runs a command that must succeed, and returns its output.
func (d *demo) run(h *lab.Host, argv ...string) string {
	d.t.Helper()
	d.command(h, argv)
	r := h.Run(programs(argv)...)
	d.output(r.Out)
	d.output(r.Err)
	if r.Code != 0 {
		d.t.Fatalf("%v on %s: exit %d\n%s%s", argv, h.Name, r.Code, r.Out, r.Err)
	}
	return strings.TrimSpace(r.Out)
}

// refused runs a command that must end with an exit code and an error that contains some words.
func (d *demo) refused(h *lab.Host, code int, words string, argv ...string) {
	d.t.Helper()
	d.command(h, argv)
	r := h.Run(programs(argv)...)
	d.output(r.Err)
	if r.Code != code || !strings.Contains(r.Err, words) {
		d.t.Fatalf("%v on %s: exit %d instead of %d, or it does not say %q\n%s%s", argv, h.Name, r.Code, code, words, r.Out, r.Err)
	}
	d.print("    exit code %d\n", r.Code)
}

// await runs a command until its output has a property. It shows only the last output.
func (d *demo) await(h *lab.Host, what string, ok func(out string) bool, argv ...string) {
	d.t.Helper()
	var r harness.Result
	h.Await(what+" in the output of "+strings.Join(argv, " "), func() bool {
		r = h.Run(programs(argv)...)
		return r.Code == 0 && ok(r.Out)
	})
	d.command(h, argv)
	d.output(r.Out)
}
