package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

// TestNewEndpoints changes the endpoints in cluster.yaml while the agent runs, as volagent-etcd does when
// the members change. Then the only member that the agent knew at its start ends. The agent continues
// with the new ones.
func TestNewEndpoints(t *testing.T) {
	t.Parallel()
	r := &rig{t: t, san: lab.StartSAN(t), etcd: etcdtest.Start(t, 3)}
	h := r.prepare("h1", san.Config{Attach: true, Stage: true})
	h.Must(os.WriteFile(filepath.Join(h.Dir, "volagent.yaml"), nil, 0o600))
	know := func(endpoints []string) {
		text := fmt.Sprintf("endpoints: [%s]\n", strings.Join(endpoints, ", "))
		h.Must(os.WriteFile(filepath.Join(h.Dir, "cluster.yaml"), []byte(text), 0o600))
	}
	all := r.etcd.Endpoints()
	know(all[:1])
	h.Start("san")
	r.hosts = append(r.hosts, h)
	r.share("db", mode("single-node-writer"))

	know(all[1:])
	h.Await("the new endpoints in the status", func() bool {
		out := h.Volctl("node", "status", "-o", "json")
		return strings.Contains(out, all[1]) && !strings.Contains(out, all[0])
	})
	r.etcd.Kill(0)
	h.Must(write(h, claim(h, "db", "web", "--timeout", "60s"), "f", "x"))
	h.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
	r.awaitGone()
}
