// Package cluster_test tests clusters of hosts with the built binaries. Most tests use a simulated SAN,
// which judges the hosts by the calls and writes that reach the storage.
package cluster_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/cluster"
	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/agent/config"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/crasher"
	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

func TestMain(m *testing.M) {
	if san.IsChild() {
		os.Exit(san.Main())
	}
	harness.Main(m, harness.Child{Env: crasher.Env, Run: crasher.Main}, harness.Child{Env: keysChild, Run: printKeys}, harness.Child{Env: labKeysChild, Run: printLabKeys},
		harness.Child{Env: hastyAgent, Run: runHasty}, harness.Child{Env: pageWriter, Run: writePages})
}

// rig is a cluster for one test: an etcd, a SAN that judges the hosts, and hosts.
type rig struct {
	t     *testing.T
	etcd  *etcdtest.Cluster
	san   *san.SAN
	hosts []*harness.Host
}

// newRig starts a cluster whose hosts run the same driver. At the end of the test, the SAN must not
// have seen a violation.
func newRig(t *testing.T, members, hosts int, driver san.Config) *rig {
	t.Helper()
	r := &rig{t: t, san: lab.StartSAN(t), etcd: etcdtest.Start(t, members)}
	for i := range hosts {
		r.hosts = append(r.hosts, r.start(fmt.Sprintf("h%d", i+1), driver))
	}
	return r
}

// start starts one host.
func (r *rig) start(name string, driver san.Config) *harness.Host {
	r.t.Helper()
	h := r.prepare(name, driver)
	h.Start("san")
	return h
}

// keys returns all keys of the cluster in etcd.
func (r *rig) keys() []shared.KV {
	r.t.Helper()
	store := r.open()
	defer func() { _ = store.Close() }()
	page, err := store.Range(r.t.Context(), shared.Span{Key: "a", End: "{"}, 0, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	return page.KVs
}

// put sets a key of the cluster in etcd.
func (r *rig) put(key, value string) {
	r.t.Helper()
	store := r.open()
	defer func() { _ = store.Close() }()
	if _, err := store.Do(r.t.Context(), shared.Txn{Then: []shared.Op{shared.Put(key, []byte(value))}}); err != nil {
		r.t.Fatal(err)
	}
}

// open connects to etcd.
func (r *rig) open() *cluster.Store {
	r.t.Helper()
	store, err := cluster.Open(r.t.Context(), cluster.Options{Endpoints: r.etcd.Endpoints(), Prefix: config.DefaultPrefix, Log: hclog.NewNullLogger()})
	if err != nil {
		r.t.Fatal(err)
	}
	return store
}

// callDeadline is the deadline of each call to the driver. After a crash, a host waits for this
// time, because an earlier call may still take effect.
const callDeadline = "1s"

// prepare makes one host, and does not start its agent.
func (r *rig) prepare(name string, driver san.Config) *harness.Host {
	r.t.Helper()
	h := harness.NewHost(r.t)
	h.MoreArgs = append(h.MoreArgs, "--node-id", name)
	addDriver(h, r.san, name, driver)
	h.Must(os.WriteFile(filepath.Join(h.Dir, "volagent.yaml"), []byte(r.section()), 0o600))
	return h
}

// addDriver writes the plugin file of a host with the given name. Without a name, the driver uses the host
// name of the system. The further lines, such as "fence: detach", belong to the plugin file.
func addDriver(h *harness.Host, s *san.SAN, name string, driver san.Config, more ...string) {
	h.T.Helper()
	self, err := os.Executable()
	h.Must(err)
	file, err := s.Driver(name, driver).PluginFile("san", self)
	h.Must(err)
	text := strings.TrimSuffix(strings.TrimSpace(string(file)), "}") + fmt.Sprintf(`, "timeouts": {"node": %q, "controller": %q}}`, callDeadline, callDeadline)
	for _, line := range more {
		text = strings.TrimSuffix(text, "}") + ", " + line + "}"
	}
	h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", "san.yaml"), []byte(text), 0o600))
}

// section returns the cluster section of a configuration.
func (r *rig) section() string {
	return fmt.Sprintf("cluster: {endpoints: [%s]}\n", strings.Join(r.etcd.Endpoints(), ", "))
}

// share adds a disk to the SAN, and registers it as a shared volume. The further lines belong to the
// volume's file.
func (r *rig) share(id string, more ...string) {
	r.t.Helper()
	shareOn(r.hosts[0], r.san, id, more...)
}

// shareOn is share for a host of any cluster.
func shareOn(h *harness.Host, s *san.SAN, id string, more ...string) {
	h.T.Helper()
	h.Must(s.AddDisk("disk-"+id, 1<<20))
	file := filepath.Join(h.Dir, id+".yaml")
	text := "id: " + id + "\nplugin_id: san\nexternal_id: disk-" + id + "\nscope: shared\n" + strings.Join(more, "\n") + "\n"
	h.Must(os.WriteFile(file, []byte(text), 0o600))
	h.Volctl("volume", "register", file)
}

// mode returns the line of a volume file for one access mode.
func mode(access string) string { return "capabilities: [{access_mode: " + access + "}]" }

// claim claims a volume, and returns the path at which it is mounted.
func claim(h *harness.Host, id, alloc string, more ...string) string {
	h.T.Helper()
	return strings.TrimSpace(h.Volctl(append([]string{"volume", "claim", id, "--alloc", alloc}, more...)...))
}

// write writes a file of a volume in a process of its own.
func write(h *harness.Host, dir, name, text string) error {
	h.T.Helper()
	out, err := exec.Command("sh", "-c", `printf %s "$2" > "$1"`, "sh", filepath.Join(dir, name), text).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// read reads a file of a volume in a process of its own.
func read(h *harness.Host, dir, name string) string {
	h.T.Helper()
	out, err := exec.Command("cat", filepath.Join(dir, name)).CombinedOutput()
	h.Must(err)
	return string(out)
}

// awaitGone waits until no host is attached to any disk.
func (r *rig) awaitGone() {
	r.t.Helper()
	r.hosts[0].Await("all attachments to end", func() bool { return len(r.san.Attachments()) == 0 })
}

// refused checks that the text of a refusal contains some words.
func refused(t *testing.T, text, words string) {
	t.Helper()
	if !strings.Contains(text, words) {
		t.Errorf("the refusal does not say %q: %s", words, text)
	}
}
