package cluster_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// registerShared registers the shared volume "db" with the given further lines of its file.
func registerShared(h *harness.Host, id string, more ...string) {
	h.T.Helper()
	file := filepath.Join(h.Dir, id+".yaml")
	text := "id: " + id + "\nplugin_id: san\nexternal_id: disk-" + id + "\nscope: shared\n" + strings.Join(more, "\n") + "\n"
	h.Must(os.WriteFile(file, []byte(text), 0o600))
	h.Volctl("volume", "register", file)
}

// manyWriters is the line of a volume file for a volume with any number of claims on one host.
const manyWriters = "capabilities: [{access_mode: single-node-multi-writer}]"

// TestOutage stops etcd while a host holds a volume. The host then serves further claims of this
// volume, detaches claims, and claims the volume again. A claim that needs another hold fails with
// the code for an unavailable service, and names etcd. After the outage the host gives up its hold.
func TestOutage(t *testing.T) {
	etcd := etcdtest.Start(t, 1)
	a, b := startHost(t, "a", etcd, nil), startHost(t, "b", etcd, nil)
	registerShared(a, "db", manyWriters)
	registerShared(a, "other")
	a.Volctl("volume", "claim", "db", "--alloc", "one")

	etcd.Stop(0)
	a.Volctl("volume", "claim", "db", "--alloc", "two")
	a.Volctl("volume", "detach", "db", "one")
	a.Volctl("volume", "detach", "db", "two")
	a.Volctl("volume", "claim", "db", "--alloc", "three")
	for _, h := range []*harness.Host{a, b} {
		r := h.Try("volume", "claim", "other", "--alloc", "x", "--timeout", "2s")
		if r.Code != 6 || !strings.Contains(r.Err, etcd.Endpoints()[0]) || !strings.Contains(r.Err, "since 20") {
			t.Errorf("a claim during the outage ended with %d: %s", r.Code, r.Err)
		}
	}
	a.Kill()
	a.Start("san")
	a.Volctl("volume", "claim", "db", "--alloc", "four")
	for _, alloc := range []string{"three", "four"} {
		a.Volctl("volume", "detach", "db", alloc)
	}

	etcd.Start(0)
	if r := b.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "40s"); r.Code != 0 {
		t.Error(r.Err, a.Try("volume", "status", "db", "-o", "json").Out, a.Try("volume", "status", "db").Out)
	}
	if r := a.Try("volume", "status", "db", "-o", "json"); strings.Contains(r.Out, `"alloc"`) {
		t.Errorf("host a still has claims:\n%s", r.Out)
	}
	b.Volctl("volume", "detach", "db", "web")
}
