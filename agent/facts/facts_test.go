package facts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/doctor"
	"github.com/volagent/volagent/agent/plugins"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

func open(t *testing.T, file string, fill func(*statedb.Tx)) *statedb.DB {
	t.Helper()
	db, err := statedb.Open(file, statedb.Options{})
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
	return db
}

// TestDatabase checks the facts about the state database. The facts must include the files that an
// agent kept beside the database, and the loss of an earlier database.
func TestDatabase(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "state.db")
	lost := time.Unix(1_700_000_000, 0).UTC()
	db := open(t, file, func(tx *statedb.Tx) {
		tx.PutNode(statedb.Node{ID: "n", Loss: statedb.Loss{At: lost, Why: "a bad page", Volumes: 2}})
	})
	kept, old := file+".damaged-20260101T000000Z", file+".schema-3"
	for _, name := range []string{kept, old} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	got := (&database{file: file, db: db}).look()
	if got.Dir != dir || got.Check != nil || got.Fault != nil || got.Disk.Err != nil || got.Disk.Total == 0 {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff([][]string{{kept}, {old}, nil}, [][]string{got.Kept, got.Old, got.Foreign}); diff != "" {
		t.Error(diff)
	}
	if got.Loss.At != lost || got.Loss.Why != "a bad page" || got.Loss.Volumes != 2 {
		t.Errorf("%+v", got.Loss)
	}
}

// TestNotes checks that the doctor reports a mounted claim that has no note, unless the claim is
// new.
func TestNotes(t *testing.T) {
	dir := t.TempDir()
	host, err := mount.New()
	if err != nil {
		t.Fatal(err)
	}
	steps := volmgr.New(volmgr.Options{Root: filepath.Join(dir, "csi"), Host: host})
	db := open(t, filepath.Join(dir, "state.db"), func(*statedb.Tx) {})
	n := noteFacts{db: records.Store{DB: db}, steps: steps}

	mounted := func(since time.Time) volume.Record {
		return volume.Record{
			Volume: volume.Volume{ID: "pg", PluginID: "p", Driver: "d", ExternalID: "e"},
			Claims: map[string]volume.Claim{"web": {
				Alloc: "web", Wanted: true, State: volume.Mounted, Since: since, Target: filepath.Join(dir, "t"), Published: volume.Present, Mount: &volume.MountIdentity{ID: 1},
			}},
		}
	}
	for name, tt := range map[string]struct {
		since time.Time
		want  int
	}{"an old claim": {time.Now().Add(-time.Hour), 1}, "a new claim": {time.Now(), 0}} {
		if got := n.Check([]volume.Record{mounted(tt.since)}); len(got) != tt.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if err := n.Fix(doctor.NoteFile{Record: mounted(time.Now()), Alloc: "web"}); err == nil || !strings.Contains(err.Error(), `claim of "web"`) {
		t.Errorf("without a notebook: %v", err)
	}
}

// TestUnmet checks that the problems of each setting become facts of a kind of their own.
func TestUnmet(t *testing.T) {
	problem := func(words string) func() []api.Problem {
		return func() []api.Problem { return []api.Problem{{Subject: "s", Message: words, Command: "fix"}} }
	}
	c := &collector{Options{VolumeFiles: problem("no such plugin"), ClassFiles: problem("no such field"), MetricsAddress: problem("cannot listen")}}
	want := []doctor.Unmet{
		{Kind: doctor.VolumeFile, Subject: "s", Why: "no such plugin", Do: "fix"},
		{Kind: doctor.ClassFile, Subject: "s", Why: "no such field", Do: "fix"},
		{Kind: doctor.MetricsAddress, Subject: "s", Why: "cannot listen", Do: "fix"},
	}
	if diff := cmp.Diff(want, c.unmet()); diff != "" {
		t.Error(diff)
	}
}

// running says for each plugin whether its test is running.
type running map[string]bool

func (r running) Testing(id string) bool { return r[id] }

// TestTests checks that the facts about an interrupted test of a plugin contain all paths of the
// test volume.
func TestTests(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "state.db"), func(tx *statedb.Tx) {
		statedb.Plugins.Put(tx, plugin.Record{ID: "p", Scratch: &plugin.Scratch{ID: "x", Staging: "/s", Targets: []string{"/t"}, Dirs: []string{"/d"}}})
	})
	c := &collector{Options{Plugins: plugins.Set{Usage: plugins.Usage{Records: records.Store{DB: db}}}, Tests: running{"p": false}}}
	got := c.tests()
	if len(got) != 1 || got[0].Plugin != "p" || got[0].Running {
		t.Fatalf("%+v", got)
	}
	if diff := cmp.Diff([]string{"/s", "/t"}, got[0].Paths); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"/d"}, got[0].Dirs); diff != "" {
		t.Error(diff)
	}
}
