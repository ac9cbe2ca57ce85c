package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

func TestMain(m *testing.M) { harness.Main(m) }

// startHost starts an agent that belongs to the cluster of an etcd.
func startHost(t *testing.T, name string, etcd *etcdtest.Cluster, change func(*csitest.Config)) *harness.Host {
	h := harness.NewHost(t)
	h.MoreArgs = append(h.MoreArgs, "--node-id", name)
	c := csitest.Config{Base: filepath.Join(h.Dir, "p"), NodeID: name, Stage: true, Attach: true, AnyVolume: true}
	if change != nil {
		change(&c)
	}
	self, err := os.Executable()
	h.Must(err)
	file, err := c.PluginFile("san", self)
	h.Must(err)
	h.Must(os.WriteFile(filepath.Join(h.Dir, "plugins.d", "san.yaml"), file, 0o600))
	h.Must(os.WriteFile(filepath.Join(h.Dir, "volagent.yaml"), []byte(fmt.Sprintf("cluster: {endpoints: [%s]}\n", strings.Join(etcd.Endpoints(), ", "))), 0o600))
	h.Start("san")
	return h
}

const volumeFile = `id: db
plugin_id: san
external_id: disk-1
scope: shared
`

// TestMove moves a volume between two hosts.
func TestMove(t *testing.T) {
	etcd := etcdtest.Start(t, 1)
	a, b := startHost(t, "a", etcd, nil), startHost(t, "b", etcd, nil)
	file := filepath.Join(a.Dir, "db.yaml")
	a.Must(os.WriteFile(file, []byte(volumeFile), 0o600))
	a.Volctl("volume", "register", file)
	a.Volctl("volume", "claim", "db", "--alloc", "web")
	r := b.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "2s")
	t.Logf("%d %s %s", r.Code, r.Out, r.Err)
	a.Volctl("volume", "detach", "db", "web")
	b.Volctl("volume", "claim", "db", "--alloc", "web")
	t.Log(b.Volctl("volume", "status", "db"))
	b.Volctl("volume", "detach", "db", "web")
}
