package backup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/notes"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// world is a fake of everything that a Service uses, except the state database.
type world struct {
	plugins
	woken  []string
	events []string
	freed  int
}

func (w *world) Wake(key string) { w.woken = append(w.woken, key) }
func (w *world) Freed()          { w.freed++ }

// plugins is a fake with only one plugin, p.
type plugins struct{}

func (plugins) View(id string) plugin.View { return plugin.View{Known: id == "p"} }
func (plugins) Restored() error            { return nil }

// owners is a fake in which all owners are alive.
type owners struct{}

func (owners) Gone(volume.Owner) bool                 { return false }
func (owners) View(volume.Owner) (v volume.OwnerView) { return v }
func (owners) Watch(volume.Owner)                     {}
func (owners) Check(context.Context, []volume.Owner)  {}

// service returns a Service with a new state database for the given node.
func service(t *testing.T, node statedb.Node, fill func(*statedb.Tx)) (*Service, *world) {
	t.Helper()
	db, _, err := Open(filepath.Join(t.TempDir(), "state.db"), statedb.Options{}, hclog.NewNullLogger())
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
		fill(tx)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	store := records.Store{DB: db}
	store.Notes = notes.New(notes.Options{Records: db, Files: volmgr.New(volmgr.Options{Root: t.TempDir()}), Log: hclog.NewNullLogger()})
	w := &world{}
	return &Service{
		DB: store, Node: node, Plugins: w, Secrets: func(volume.Volume) (call.Secrets, error) { return nil, nil }, Owners: owners{}, Queue: w, Reaper: w,
		Events: func(evs ...volume.Event) {
			for _, e := range evs {
				w.events = append(w.events, string(e.Type)+" "+e.Volume)
			}
		},
	}, w
}

func none(*statedb.Tx) {}

// pg returns a registered volume without mounts.
func pg(external string) volume.Record {
	return volume.Record{Volume: volume.Volume{ID: "pg", PluginID: "p", Driver: "d", ExternalID: external, Capabilities: []call.Capability{{Access: call.SingleNodeWriter, Attachment: call.FileSystem}}}}
}

// TestRestore checks that a restore adds an unknown volume, changes no known volume, and writes
// nothing in a dry run.
func TestRestore(t *testing.T) {
	from, _ := service(t, statedb.Node{ID: "n1", DataDir: "/data", Boot: "b1"}, func(tx *statedb.Tx) { tx.PutVolume(pg("e")) })
	for _, tt := range []struct {
		name    string
		node    string
		fill    func(*statedb.Tx)
		dry     bool
		outcome string
		stored  int
		same    bool
	}{
		{"the same node", "n1", none, false, api.OutcomeRestored, 1, true},
		{"a dry run", "n1", none, true, api.OutcomeRestored, 0, true},
		{"another node", "n2", none, false, api.OutcomeRestored, 1, false},
		{"the volume is known", "n1", func(tx *statedb.Tx) { tx.PutVolume(pg("e")) }, false, api.OutcomePresent, 1, true},
		{"its id means another storage", "n1", func(tx *statedb.Tx) { tx.PutVolume(pg("other")) }, false, api.OutcomeRefused, 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			copied, _, err := from.Backup(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer copied.Close()
			to, w := service(t, statedb.Node{ID: tt.node, DataDir: "/data", Boot: "b1"}, tt.fill)
			got, err := to.Restore(t.Context(), copied, tt.dry)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Items) != 1 || got.Items[0].Outcome != tt.outcome || got.SameNode != tt.same {
				t.Errorf("%+v", got)
			}
			if n := len(to.DB.Volumes()); n != tt.stored {
				t.Errorf("%d volumes are stored, want %d", n, tt.stored)
			}
			told := strings.Join(w.events, ", ")
			if restored := tt.outcome == api.OutcomeRestored && !tt.dry; restored != (told == "restored pg") || restored != (len(w.woken) == 1) || restored != (w.freed == 1) {
				t.Errorf("events %q, woken %q, freed %d", told, w.woken, w.freed)
			}
		})
	}
}

// TestRestoreHalted checks that a halted agent restores nothing.
func TestRestoreHalted(t *testing.T) {
	s, _ := service(t, statedb.Node{ID: "n1"}, none)
	s.Halt = "it runs in another namespace"
	if _, err := s.Restore(t.Context(), strings.NewReader(""), false); !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), s.Halt) {
		t.Errorf("got %v", err)
	}
}

// TestOpenDamaged checks that Open keeps a damaged file beside a new state database. The next
// adoption must record the loss.
func TestOpenDamaged(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	db, why, err := Open(path, statedb.Options{}, hclog.NewNullLogger())
	if err != nil || why == "" {
		t.Fatalf("%q, %v", why, err)
	}
	defer db.Close()
	kept, err := filepath.Glob(path + ".damaged-*")
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept %q, %v", kept, err)
	}

	host, err := mount.New()
	if err != nil {
		t.Fatal(err)
	}
	a := Adoption{
		DB: records.Store{DB: db}, Steps: volmgr.New(volmgr.Options{Root: filepath.Join(dir, "csi"), Host: host}), Host: host, DataDir: dir, Damage: why,
		Events: func(...volume.Event) {}, Log: hclog.NewNullLogger(),
	}
	if halt, _, err := a.Run(t.Context()); err != nil || halt != "" {
		t.Fatalf("%q, %v", halt, err)
	}
	if loss := db.Node().Loss; loss.Kept != kept[0] || loss.Why != why || loss.At.IsZero() {
		t.Errorf("%+v", loss)
	}
}

// TestFirstStart checks that the first start of an agent does not count as a loss of the database.
func TestFirstStart(t *testing.T) {
	dir := t.TempDir()
	db, why, err := Open(filepath.Join(dir, "state.db"), statedb.Options{}, hclog.NewNullLogger())
	if err != nil || why != "" {
		t.Fatalf("%q, %v", why, err)
	}
	defer db.Close()
	a := Adoption{DB: records.Store{DB: db}, Steps: volmgr.New(volmgr.Options{Root: filepath.Join(dir, "csi")}), DataDir: dir, Log: hclog.NewNullLogger()}
	if halt, id, err := a.Run(t.Context()); err != nil || halt != "" || id != "" || db.Node() != (statedb.Node{}) {
		t.Errorf("%q, %q, %v, %+v", halt, id, err, db.Node())
	}
}
