package cli

import (
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// clusterWorld returns a fake agent whose host belongs to a cluster.
func clusterWorld() *fake {
	f := world()
	two, mode := 2, capability("single-node-writer")
	for i := range f.volumes {
		f.volumes[i].Scope = api.ScopeHost
	}
	f.volumes = append(f.volumes, api.Volume{
		Spec:  api.VolumeSpec{ID: "zdb", PluginID: "san", ExternalID: "lun-7", Scope: api.ScopeShared, Takeover: api.TakeoverNever, Capabilities: []api.Capability{mode}},
		State: api.StateHeld, Summary: "held by host db2", Driver: "san.example.com", PluginState: "ready", Controller: true, Attached: "absent", Staged: "absent",
		Claims: []api.Claim{}, Scope: api.ScopeShared,
		Holds: []api.Hold{{
			Volume: "zdb", Host: "db2", HostState: api.HostGone, AccessMode: mode.AccessMode, Attachment: "attached", Since: ago(3 * time.Hour), Token: "1.77", Claims: &two, State: "mounted",
		}},
		TakenOver:   &api.Takeover{From: "db1", FenceDrop: api.FenceDrop{Volume: "zdb", Kind: "detach", By: "db3", At: ago(4 * time.Hour)}},
		ClusterCall: &api.ClusterCall{Volume: "zdb", Executor: "db3", Call: "ControllerUnpublishVolume", Target: "db2", Since: ago(20 * time.Second)},
	})
	f.node.Problems = nil
	f.node.Cluster = &api.NodeCluster{Endpoints: "10.0.0.1:2379, 10.0.0.2:2379", Reason: "etcd does not answer", Since: ago(90 * time.Second), Incarnation: 4, Holds: 2, Pending: []string{`volume "zdb" waits for the cluster`}}

	db2 := api.ClusterHost{
		ID: "db2", State: api.HostGone, Since: ago(9 * day), Seen: ago(2 * time.Hour), Incarnation: 12, Version: "1.2.0", HoldCount: 1, Holds: f.volumes[len(f.volumes)-1].Holds,
		Plugins: []api.ClusterPlugin{{ID: "san", Driver: "san.example.com", Version: "2.0", NodeID: "iqn.db2", Controller: true}},
		Calls:   []api.ClusterCall{{Volume: "old", Executor: "db2", Call: "ControllerPublishVolume", Target: "db2", Since: ago(2 * time.Hour)}},
	}
	db4 := api.ClusterHost{
		ID: "db4", State: api.HostFenced, Since: ago(5 * time.Minute), Seen: ago(2 * time.Hour), Incarnation: 3, Plugins: []api.ClusterPlugin{}, Quarantined: []string{"old"},
		Proof: &api.FenceProof{
			Kind: "person", Who: "uid 0 on host web1", Reason: "pulled the cord", At: ago(5 * time.Minute),
			Drops: []api.FenceDrop{{Volume: "zdb", Kind: "person", By: "web1", At: ago(4 * time.Minute)}}, Hooks: []api.FenceAsked{{Name: "ipmi", By: "db3", At: ago(6 * time.Minute)}},
		},
	}
	self := api.ClusterHost{ID: "web1", Self: true, Alive: true, State: api.HostReady, Since: ago(day), Seen: ago(time.Minute), Version: "1.2.0", Plugins: []api.ClusterPlugin{}}
	f.on["GET /v1/nodes"] = answers([]api.ClusterHost{db2, self})
	f.on["GET /v1/nodes/db2"] = answers(db2)
	f.on["GET /v1/nodes/db4"] = answers(db4)
	f.on["POST /v1/nodes/db4/fence"] = answers(api.Fenced{Host: "db4", Proof: *db4.Proof, Taken: []string{"zdb"}})
	f.on["POST /v1/nodes/web1/fence"] = refuses(api.Error{Code: api.CodeRefused, Message: `host "web1" is alive`, Hint: "to empty a host that is alive, run on it: volctl node drain"})
	f.on["POST /v1/nodes/db4/unfence"] = answers(api.Unfenced{Host: "db4", Hooks: []string{"ipmi"}})
	f.on["POST /v1/nodes/db4/fence-test"] = answers(api.FenceTested{Host: "db4", Answers: []string{"hook ipmi: off"}})
	f.on["GET /v1/nodes/db9"] = refuses(api.Error{Code: api.CodeNotFound, Message: `the cluster has no host "db9"`, Hint: "volctl node list"})
	f.on["POST /v1/nodes/db2/replace"] = answers(api.Replaced{Host: "db2", Dropped: []string{"zdb"}})
	f.on["POST /v1/nodes/web1/replace"] = refuses(api.Error{Code: api.CodeRefused, Message: `host "web1" is alive`})
	return f
}

// TestClusterScreens checks the screens of a host that belongs to a cluster.
func TestClusterScreens(t *testing.T) {
	lines := words("volume list", "volume list -o wide", "volume status zdb", "volume status zd -o json", "node list", "node list -q", "node status db2", "node status web1", "node status db9", "node replace db2 --reason dead",
		"node replace db2 -y", "node replace db2 --reason dead -y", "node replace web1 --reason dead -y")
	lines = append(lines, words("node status db4", "node fence db4 --reason", "node fence db4 --reason dead", "node fence db4 --powered-off", "node fence db4 --powered-off --reason dead",
		"node fence web1 --powered-off --reason dead", "node unfence db4", "node fence-test db4")...)
	golden(t, filepath.Join("testdata", "cluster.txt"), session(with(t, clusterWorld()), lines...))
}

// TestClusterAway checks that a list without the cluster is complete for this host, names the missing
// volumes on stderr, and exits 0.
func TestClusterAway(t *testing.T) {
	f := clusterWorld()
	f.warning = "the list shows only the volumes that this host knows: etcd at 10.0.0.1:2379 does not answer, since 2026-03-10T03:00:00Z"
	r := with(t, f)
	res := r.volctl("volume", "list", "-q")
	if res.code != 0 || res.stdout == "" || res.stderr != "warning: "+f.warning+"\n" {
		t.Errorf("exit %d, %q, %q", res.code, res.stdout, res.stderr)
	}
	expectSent(t, f, "GET /v1/volumes?cluster=true")
}

// TestReplaceSends checks the request of a replacement. Without -y, there is none.
func TestReplaceSends(t *testing.T) {
	f := clusterWorld()
	r := with(t, f)
	if res := r.volctl("node", "replace", "db2", "--reason", "it burnt"); res.code != 2 {
		t.Errorf("without -y: exit %d", res.code)
	}
	expectSent(t, f)
	f.on["POST /v1/nodes/db2/replace"] = func(*http.Request) (any, error) { return api.Replaced{Host: "db2"}, nil }
	r.volctl("node", "replace", "db2", "--reason", "it burnt", "-y")
	expectSent(t, f, `POST /v1/nodes/db2/replace {"reason":"it burnt"}`)
}
