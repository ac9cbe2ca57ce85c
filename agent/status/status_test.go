package status

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/config"
	"github.com/volagent/volagent/agent/plugins"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// quiet is a fake agent with some mounts. It has no running step, no test and no problem with a
// volume file.
type quiet struct{ mounts []mount.Entry }

func (quiet) Last(volume.Record) *volume.Attempt         { return nil }
func (quiet) Testing(string) bool                        { return false }
func (quiet) Problems() []api.Problem                    { return nil }
func (quiet) LastReport(volume.Record) (r volume.Report) { return r }
func (q quiet) Under(path string) ([]mount.Entry, error) { return q.mounts, nil }

func service(t *testing.T, host quiet, fill func(*statedb.Tx)) *Service {
	t.Helper()
	dir := t.TempDir()
	db, err := statedb.Open(filepath.Join(dir, "state.db"), statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := db.Update(t.Context(), func(tx *statedb.Tx) error { fill(tx); return nil }); err != nil {
		t.Fatal(err)
	}
	store := records.Store{DB: db}
	set := plugins.Set{Usage: plugins.Usage{Records: store}, Supervisor: supervisor.New(supervisor.Options{
		Store: records.Plugins{Store: store}, Registry: records.Plugins{Store: store}, Logger: hclog.NewNullLogger(),
	})}
	return &Service{NodeID: "n", DataDir: dir, Records: store, Plugins: set, Queue: host, Tests: host, Files: host, Classes: host, Volumes: host, Host: host, Cluster: func() *api.NodeCluster { return nil }}
}

// TestNode checks which facts in the state database appear as problems of the node.
func TestNode(t *testing.T) {
	for _, tt := range []struct {
		name string
		fill func(*statedb.Tx)
		db   string
		want string // a part of the message of the only expected problem; empty means no problem
	}{
		{"a new agent", func(*statedb.Tx) {}, "ok", ""},
		{"adopted claims", func(tx *statedb.Tx) {
			tx.PutNode(statedb.Node{ID: "n", Loss: statedb.Loss{At: time.Unix(1, 0), Volumes: 1, Claims: 1}})
			tx.PutVolume(volume.Record{
				Volume: volume.Volume{ID: "v", PluginID: "p", Driver: "d", ExternalID: "e"}, Claims: map[string]volume.Claim{"a": {Alloc: "a", Wanted: true, Adopted: true}},
			})
		}, "made anew", "adopted: 1 volumes with 1 claims, of which 1 are held"},
		{"a loss without a trace", func(tx *statedb.Tx) {
			tx.PutNode(statedb.Node{ID: "n", Loss: statedb.Loss{At: time.Unix(1, 0)}})
		}, "ok", ""},
		{"an interrupted test", func(tx *statedb.Tx) {
			statedb.Plugins.Put(tx, plugin.Record{ID: "p", Scratch: &plugin.Scratch{ID: "x"}})
		}, "ok", "a test of the plugin left volume"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := service(t, quiet{}, tt.fill).Node()
			if n.DB != tt.db || n.State != "ok" {
				t.Errorf("database %q, state %q", n.DB, n.State)
			}
			if tt.want == "" && len(n.Problems) == 0 {
				return
			}
			if tt.want == "" || len(n.Problems) != 1 || !strings.Contains(n.Problems[0].Message, tt.want) {
				t.Errorf("problems %+v, want %q", n.Problems, tt.want)
			}
		})
	}
}

// TestLine checks the line for systemctl status.
func TestLine(t *testing.T) {
	s := service(t, quiet{}, func(tx *statedb.Tx) {
		tx.PutVolume(volume.Record{Volume: volume.Volume{ID: "v", PluginID: "p", Driver: "d", ExternalID: "e"}})
	})
	if got := s.Line(); got != "1 volumes" {
		t.Errorf("got %q", got)
	}
	s.Halt = "another namespace"
	if got := s.Line(); got != "halted: another namespace" {
		t.Errorf("got %q", got)
	}
}

// TestStrays checks that Strays reports a mount below the mount root, with the command that removes
// the mount. It must not report the root itself.
func TestStrays(t *testing.T) {
	s := service(t, quiet{}, func(*statedb.Tx) {})
	root := config.MountRoot(s.DataDir)
	s.Host = quiet{[]mount.Entry{{Path: root}, {Path: "/x/y"}}}
	want := []volume.Occupant{{Message: "/x/y is mounted (), and no record explains it", Command: remedy.Of(remedy.UnmountPath, "/x/y")}}
	if diff := cmp.Diff(want, s.Strays()); diff != "" {
		t.Error(diff)
	}
}
