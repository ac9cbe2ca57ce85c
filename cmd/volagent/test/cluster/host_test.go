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

// startHost starts an agent that belongs to the cluster of an etcd. Its plugin "san" is the
// recording plugin, whose storage other hosts do not see.
func startHost(t *testing.T, name string, etcd *etcdtest.Cluster, change func(*csitest.Config)) *harness.Host {
	t.Helper()
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

// volumeFile describes a shared volume of the plugin "san".
const volumeFile = `id: db
plugin_id: san
external_id: disk-1
scope: shared
`
