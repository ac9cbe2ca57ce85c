package cluster_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// claimFails claims a volume on a host, and checks the code and the words of the refusal.
func claimFails(h *harness.Host, code int, words ...string) {
	h.T.Helper()
	r := h.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "2s")
	if r.Code != code {
		h.T.Errorf("the claim ended with %d instead of %d: %s", r.Code, code, r.Err)
	}
	for _, w := range words {
		if !strings.Contains(r.Err, w) {
			h.T.Errorf("the refusal does not say %q: %s", w, r.Err)
		}
	}
}

// TestUnreachable starts hosts whose etcd does not exist, does not answer, or is another program.
// Volumes of the host itself work, and a claim of an unknown volume says why the cluster cannot be
// asked.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	r := newRig(t, 1, 0, san.Config{Stage: true})
	for name, endpoint := range map[string]string{
		"nothing": "http://127.0.0.1:9", "silent": "http://" + silent.Addr().String(), "TLS": strings.Replace(r.etcd.Endpoints()[0], "http:", "https:", 1),
	} {
		t.Run(name, func(t *testing.T) {
			h := r.prepare("h1", san.Config{Stage: true})
			h.Must(os.WriteFile(filepath.Join(h.Dir, "volagent.yaml"), []byte("cluster: {endpoints: ["+endpoint+"]}\n"), 0o600))
			h.Start("san", "local")
			h.Volctl("volume", "create", "own", "--plugin", "local")
			claim(h, "own", "web")
			claimFails(h, 6, `volume "db"`, endpoint, "since 20")
			h.Volctl("volume", "detach", "own", "web")
			h.Kill()
			h.StopPlugins()
		})
	}
}

// TestOldEtcd starts a host whose etcd is too old. The host writes nothing there, and each message names
// both versions. The volumes of the host itself work. The host joins the cluster when its configuration
// names a newer etcd.
func TestOldEtcd(t *testing.T) {
	t.Parallel()
	old := etcdtest.StartOld(t, 1)
	r := newRig(t, 1, 0, san.Config{Stage: true})
	h := r.prepare("h1", san.Config{Stage: true})
	r.hosts = append(r.hosts, h)
	h.Must(os.WriteFile(filepath.Join(h.Dir, "volagent.yaml"), []byte("cluster: {endpoints: ["+old.Endpoints()[0]+"]}\n"), 0o600))
	h.Start("san", "local")

	words := "this etcd is not supported: its version is " + etcdtest.OldVersion + ", and at least 3.5.18 is needed"
	h.Volctl("volume", "create", "own", "--plugin", "local")
	claim(h, "own", "web")
	claimFails(h, 6, `volume "db"`, old.Endpoints()[0], words, "since 20")
	h.ExpectOutput(words, "node", "status")
	h.ExpectRefusal(6, words, "node", "list")
	h.ExpectRefusal(6, words, "node", "status", "h2")
	h.ExpectOutput(words, "events")
	if log := logOf(h); !strings.Contains(log, words) {
		t.Errorf("the log does not say %q:\n%s", words, log)
	}
	if n := old.Count(); n != 0 {
		t.Errorf("the host has written %d keys into the etcd that it does not support", n)
	}
	h.Volctl("volume", "detach", "own", "web")

	h.Kill()
	h.Must(os.WriteFile(filepath.Join(h.Dir, "volagent.yaml"), []byte(r.section()), 0o600))
	h.Start("san", "local")
	r.share("db")
	claim(h, "db", "web")
	h.Volctl("volume", "detach", "db", "web")
	r.awaitGone()
}

// logOf returns the log of the agent of a host.
func logOf(h *harness.Host) string {
	h.T.Helper()
	raw, err := os.ReadFile(h.Log.Name())
	h.Must(err)
	return string(raw)
}

// TestOtherCluster gives a host the data of another cluster, of another program, and of a newer
// release. The host does not register, and says why. Nothing in etcd changes.
func TestOtherCluster(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, value string
		code        int
		words       string
	}{
		{"another cluster", `{"schema":1,"cluster_id":"other","epoch":1}`, 6, "this host belongs to cluster"},
		{"a newer schema", `{"schema":99,"cluster_id":"x","epoch":1}`, 6, "schema 99"},
		{"other data", `hello`, 4, "is not one of volagent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, 1, san.Config{Stage: true})
			h := r.hosts[0]
			r.share("db")
			h.Kill()
			r.put(shared.MetaKey, c.value)
			h.Start("san")
			claimFails(h, c.code, c.words)
		})
	}
}

// TestForeignPrefix gives the first host of a cluster a prefix with the data of another program, and one
// whose first key was lost. The host founds no cluster there, and says why.
func TestForeignPrefix(t *testing.T) {
	t.Parallel()
	for key, code := range map[string]int{"Config/of-another-program": 6, shared.VolumeKey("other"): 6, shared.VolumeKey("db"): 4} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, 0, san.Config{Stage: true})
			r.put(key, "{}")
			h := r.start("h1", san.Config{Stage: true})
			h.Await("the refusal", func() bool { return strings.Contains(h.Volctl("node", "status"), "other data: key \""+key+"\"") })
			claimFails(h, code, `volume "db"`)
			store := r.open()
			defer func() { _ = store.Close() }()
			page, err := store.Range(t.Context(), shared.Span{Key: "\x00", End: "\xff"}, 0, 0)
			if err != nil || len(page.KVs) != 1 {
				t.Errorf("the host has changed the keys under the prefix: %+v, %v", page.KVs, err)
			}
		})
	}
}

// TestTwins starts two hosts with one name. The second one does not register while the first one is
// alive.
func TestTwins(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, san.Config{Stage: true})
	r.share("db")
	twin := r.start("h1", san.Config{Stage: true})
	claimFails(twin, 6, `another agent is registered as host "h1"`)
	claim(r.hosts[0], "db", "web")
	r.hosts[0].Volctl("volume", "detach", "db", "web")
}

// TestWithoutSection removes the section cluster from a host that has holds. The host leaves its
// mounts alone, and says why it does nothing.
func TestWithoutSection(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, san.Config{Attach: true, Stage: true})
	h := r.hosts[0]
	r.share("db")
	path := claim(h, "db", "web")
	h.Kill()
	h.Must(os.WriteFile(filepath.Join(h.Dir, "volagent.yaml"), nil, 0o600))
	h.Start("san")
	h.Must(write(h, path, "f", "x"))
	h.ExpectOutput("has no section cluster", "volume", "status", "db")
	if r := h.Try("doctor"); !strings.Contains(r.Out+r.Err, "has no section cluster") {
		t.Errorf("the doctor does not mention the section: %s%s", r.Out, r.Err)
	}
	if r := h.Try("volume", "detach", "db", "web", "--timeout", "2s"); r.Code == 0 || !strings.Contains(r.Err, "has no section cluster") {
		t.Errorf("a detach ended with %d: %s", r.Code, r.Err)
	}
	h.Must(write(h, path, "f", "y"))
	h.Kill()
	h.Must(os.WriteFile(filepath.Join(h.Dir, "volagent.yaml"), []byte(r.section()), 0o600))
	h.Start("san")
	r.awaitGone()
}

// TestSnapshot brings a host back to an older state, as the return to a snapshot of a virtual
// machine does. Its claims are lost, and its hold is given up. Another host can use the volume.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, san.Config{Attach: true, Stage: true})
	a, b := r.hosts[0], r.hosts[1]
	r.share("db")
	claim(a, "db", "web")
	a.Kill()
	state := filepath.Join(a.Dir, "d", "state.db")
	saved := map[string][]byte{}
	for _, name := range []string{state, filepath.Join(a.Dir, "d", "state.log")} {
		raw, err := os.ReadFile(name)
		a.Must(err)
		saved[name] = raw
	}
	a.Start("san")
	a.Volctl("volume", "detach", "db", "web")
	claim(a, "db", "later")
	a.Kill()
	for name, raw := range saved {
		a.Must(os.WriteFile(name, raw, 0o600))
	}
	a.Start("san")
	claim(b, "db", "web", "--timeout", "60s")
	b.Volctl("volume", "detach", "db", "web")
	r.awaitGone()
	r.expectFree("db")
}
