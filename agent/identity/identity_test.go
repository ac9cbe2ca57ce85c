package identity

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/config"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// host is a fake host that has only the given mounts.
type host struct {
	boot      string
	namespace uint64
	mounts    []string
}

func (h host) Boot() string      { return h.boot }
func (h host) Namespace() uint64 { return h.namespace }

func (h host) Under(root string) (all []mount.Entry, err error) {
	for _, path := range h.mounts {
		if path == root || strings.HasPrefix(path, root+"/") {
			all = append(all, mount.Entry{Path: path})
		}
	}
	return all, nil
}

// stored returns a state database with a node record that an earlier agent has stored. If held is
// set, the database also contains a volume that is on this host.
func stored(t *testing.T, node statedb.Node, held bool) records.Store {
	t.Helper()
	db, err := statedb.Open(filepath.Join(t.TempDir(), "state.db"), statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	err = db.Update(t.Context(), func(tx *statedb.Tx) error {
		tx.PutNode(node)
		r := volume.Record{Volume: volume.Volume{ID: "v", PluginID: "p", Driver: "d", ExternalID: "e"}}
		if held {
			r.Node.Attached = volume.Present
		}
		tx.PutVolume(r)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return records.Store{DB: db}
}

// TestIdentify checks which changes of the host and of the configuration Identify accepts. The test
// makes each change with and without a volume on the host.
func TestIdentify(t *testing.T) {
	was := statedb.Node{ID: "n1", DataDir: "/data", Boot: "b1", Namespace: 7}
	for _, tt := range []struct {
		name, nodeID, dataDir string
		host                  host
		held                  bool
		refused, halt         string
		want                  statedb.Node
	}{
		{"nothing changed", "", "/data", host{boot: "b1", namespace: 7}, true, "", "", was},
		{"a reboot", "", "/data", host{boot: "b2", namespace: 9}, true, "", "", statedb.Node{ID: "n1", DataDir: "/data", Boot: "b2", Namespace: 9}},
		{"another namespace with a volume", "", "/data", host{boot: "b1", namespace: 9}, true, "", "runs in another mount namespace", was},
		{"another namespace without one", "", "/data", host{boot: "b1", namespace: 9}, false, "", "", statedb.Node{ID: "n1", DataDir: "/data", Boot: "b1", Namespace: 9}},
		{"another node id with a volume", "n2", "/data", host{boot: "b1", namespace: 7}, true, "cannot change the node id", "", was},
		{"another node id without one", "n2", "/data", host{boot: "b1", namespace: 7}, false, "", "", statedb.Node{ID: "n2", DataDir: "/data", Boot: "b1", Namespace: 7}},
		{"a moved data dir with a volume", "", "/moved", host{boot: "b1", namespace: 7}, true, "this data dir was at /data", "", was},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node, halt, err := Identify(stored(t, was, tt.held), tt.nodeID, tt.dataDir, tt.host)
			if tt.refused != "" {
				if !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), tt.refused) {
					t.Errorf("got %v, want %q", err, tt.refused)
				}
				return
			}
			if err != nil || (halt == "") != (tt.halt == "") || !strings.Contains(halt, tt.halt) {
				t.Errorf("halt %q, %v, want %q", halt, err, tt.halt)
			}
			if node != tt.want {
				t.Errorf("got %+v, want %+v", node, tt.want)
			}
		})
	}
}

// TestEnded checks that Ended derives from two node records how the last agent stopped.
func TestEnded(t *testing.T) {
	now := statedb.Node{Boot: "b1"}
	for _, tt := range []struct {
		was  statedb.Node
		want volume.Stop
	}{
		{statedb.Node{}, volume.Crashed},
		{statedb.Node{Boot: "b1"}, volume.Crashed},
		{statedb.Node{Boot: "b1", Clean: true}, volume.Stopped},
		{statedb.Node{Boot: "b0"}, volume.Rebooted},
		{statedb.Node{Boot: "b0", Clean: true}, volume.Shut},
	} {
		if got := Ended(tt.was, now); got != tt.want {
			t.Errorf("%+v: %v, want %v", tt.was, got, tt.want)
		}
	}
}

// TestClaimRuntimeDir checks that ClaimRuntimeDir refuses a second data dir while the first data
// dir has mounts, and accepts it after the mounts are gone.
func TestClaimRuntimeDir(t *testing.T) {
	dir := t.TempDir()
	one := config.Dirs{Data: filepath.Join(dir, "one"), Runtime: dir}
	two := config.Dirs{Data: filepath.Join(dir, "two"), Runtime: dir}
	root := config.MountRoot(one.Data)
	busy := host{mounts: []string{root, root + "/v"}}
	take := func(d config.Dirs, movedFrom string, h host) Elsewhere {
		t.Helper()
		e, err := ClaimRuntimeDir(t.Context(), d, movedFrom, h, hclog.NewNullLogger())
		if err != nil {
			t.Fatal(err)
		}
		return e
	}

	if e := take(one, "", busy); !e.Empty() {
		t.Fatalf("the first agent: %+v", e)
	}
	e := take(two, "", busy)
	if e.Empty() || e.DataDir != one.Data || len(e.Mounts) != 1 || !strings.Contains(e.Said(), "1 mounts, as "+root+"/v") {
		t.Errorf("an agent beside it: %+v: %s", e, e.Said())
	}
	if e := take(two, one.Data, busy); !e.Empty() {
		t.Errorf("the same agent after a move: %+v", e)
	}
	if e := take(one, "", host{}); !e.Empty() {
		t.Errorf("without mounts: %+v", e)
	}
	if raw, err := os.ReadFile(filepath.Join(dir, placeFile)); err != nil || string(raw) != one.Data+"\n" {
		t.Errorf("%q, %v", raw, err)
	}
}
