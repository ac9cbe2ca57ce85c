package statedb_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// heard collects the warnings that a database reports about its files.
type heard struct {
	mu    sync.Mutex
	words []string
}

func (h *heard) warn(message string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.words = append(h.words, message)
}

func (h *heard) all() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.words, "\n")
}

// held opens a database with one volume. The caller must close the database.
func held(t *testing.T) (*statedb.DB, string, *heard) {
	t.Helper()
	path, said := filepath.Join(t.TempDir(), "state.db"), &heard{}
	db, err := statedb.Open(path, statedb.Options{Warn: said.warn})
	if err != nil {
		t.Fatal(err)
	}
	do(t, db.Update, put(record("before")))
	return db, path, said
}

func closed(t *testing.T, db *statedb.DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// TestRemovedWhileOpen removes the files of an open database. The database must write them again
// before the next change, while it is idle, and in Close.
func TestRemovedWhileOpen(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*testing.T, *statedb.DB)
		want   map[string]bool
	}{
		"a change": {func(t *testing.T, db *statedb.DB) { do(t, db.Update, put(record("after"))) }, map[string]bool{"before": true, "after": true}},
		"a look":   {func(_ *testing.T, db *statedb.DB) { db.Tend() }, map[string]bool{"before": true}},
		"a close":  {func(t *testing.T, db *statedb.DB) { closed(t, db) }, map[string]bool{"before": true}},
	} {
		t.Run(name, func(t *testing.T) {
			db, path, said := held(t)
			for _, p := range []string{path, logOf(path)} {
				if err := os.Remove(p); err != nil {
					t.Fatal(err)
				}
			}
			tt.change(t, db)
			if _, err := os.Stat(logOf(path)); err != nil {
				t.Errorf("the log is not there again: %v", err)
			}
			equal(t, "as a crash now would leave it", ids(t, copied(t, path)), tt.want)
			if !strings.Contains(said.all(), path+" was removed") || db.Fault() != nil {
				t.Errorf("it says %q; the fault is %v", said.all(), db.Fault())
			}
			closed(t, db)
			equal(t, "at the next start", ids(t, path), tt.want)
		})
	}
}

// TestBackupAfterRewrite checks that a backup can be made after the file was written again.
func TestBackupAfterRewrite(t *testing.T) {
	db, path, _ := held(t)
	defer closed(t, db)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	b, err := db.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got, err := db.ReadBackup(b)
	if err := errors.Join(err, b.Close(), db.Verify()); err != nil || len(got.Volumes()) != 1 {
		t.Errorf("the copy has %d volumes: %v", len(got.Volumes()), err)
	}
}

// TestRemovedLogKeepsLines removes the log of an open database. The rewritten log must contain the
// lines whose changes are not committed yet.
func TestRemovedLogKeepsLines(t *testing.T) {
	g := newGate()
	path := filepath.Join(t.TempDir(), "state.db")
	db, err := statedb.Open(path, statedb.Options{Tap: g.tap})
	if err != nil {
		t.Fatal(err)
	}
	made := make(chan error, 1)
	go func() {
		made <- db.Update(t.Context(), func(tx *statedb.Tx) error {
			tx.PutVolume(record("v"))
			tx.PutVolume(record("w"))
			return nil
		})
	}()
	<-g.arrived
	g.pass <- struct{}{}
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	tellOne := func(id string, access volume.Side) {
		t.Helper()
		if err := saveVolume(t.Context(), db, id, func(r volume.Record) (volume.Record, volume.Saving) {
			r.Node.Staged = access
			return r, volume.SaveAtOnce
		}); err != nil {
			t.Fatal(err)
		}
	}
	tellOne("v", volume.Present)
	<-g.arrived // the writer stops just before the commit
	if err := os.Remove(logOf(path)); err != nil {
		t.Fatal(err)
	}
	tellOne("w", volume.Present)
	crashed := copied(t, path)
	raw, err := os.ReadFile(logOf(path))
	if err := errors.Join(err, os.WriteFile(logOf(crashed), raw, 0o600)); err != nil {
		t.Fatal(err)
	}
	after := open(t, crashed, statedb.Options{})
	for _, id := range []string{"v", "w"} {
		if r, _ := after.Volume(id); r.Node.Staged != volume.Present {
			t.Errorf("%s was told to be staged; after a crash it is %q", id, r.Node.Staged)
		}
	}
	close(g.pass)
	closed(t, db)
}

func logOf(path string) string { return strings.TrimSuffix(path, ".db") + ".log" }

// TestReplacedWhileOpen replaces a file of an open database. The database must rename the other
// file and write its own file again. It must still store events, but must refuse updates.
func TestReplacedWhileOpen(t *testing.T) {
	for _, which := range []string{"state.db", "state.log"} {
		t.Run(which, func(t *testing.T) {
			db, path, said := held(t)
			target := filepath.Join(filepath.Dir(path), which)
			if err := errors.Join(os.WriteFile(target+"x", []byte("another file"), 0o600), os.Rename(target+"x", target)); err != nil {
				t.Fatal(err)
			}
			db.Tend()
			var foreign *statedb.Foreign
			if !errors.As(db.Fault(), &foreign) || foreign.Path != target {
				t.Fatalf("the fault is %v", db.Fault())
			}
			if raw, err := os.ReadFile(foreign.Kept); err != nil || string(raw) != "another file" || !strings.HasPrefix(foreign.Kept, target+".foreign-2") {
				t.Errorf("kept as %s: %q, %v", foreign.Kept, raw, err)
			}
			err := db.Update(t.Context(), put(record("wanted")))
			if !errors.As(err, &foreign) || !strings.Contains(fmt.Sprint(err), "was replaced") || !strings.Contains(said.all(), "was replaced") {
				t.Errorf("an intent: %v; it said %q", err, said.all())
			}
			do(t, db.Happened, put(record("happened")))
			want := map[string]bool{"before": true, "happened": true}
			equal(t, "as a crash now would leave it", ids(t, copied(t, path)), want)

			// The agent renames the other program's file only once. It does not compete with a
			// program that replaces the file again and again.
			if err := os.WriteFile(target+"x", []byte("again"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(target+"x", target); err != nil {
				t.Fatal(err)
			}
			db.Tend()
			if all, _ := filepath.Glob(target + ".foreign-*"); len(all) != 1 {
				t.Errorf("set aside are %v", all)
			}
			closed(t, db)
		})
	}
}

// TestReplacedBeforeChange replaces a file of an open database. The next update discovers the other
// file. The database must already refuse this update.
func TestReplacedBeforeChange(t *testing.T) {
	db, path, _ := held(t)
	defer closed(t, db)
	if err := errors.Join(os.Rename(path, path+".mine"), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	var foreign *statedb.Foreign
	if err := db.Update(t.Context(), put(record("wanted"))); !errors.As(err, &foreign) {
		t.Errorf("it is made: %v", err)
	}
	equal(t, "as a crash now would leave it", ids(t, copied(t, path)), map[string]bool{"before": true})
}

// TestMovedWhileOpen checks that the database refuses changes after the data dir was moved, because
// the next start would not find these changes.
func TestMovedWhileOpen(t *testing.T) {
	db, path, _ := held(t)
	dir := filepath.Dir(path)
	if err := errors.Join(os.Rename(dir, dir+".moved"), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := db.Update(t.Context(), put(record("after"))); !strings.Contains(fmt.Sprint(err), "was moved or replaced") {
		t.Errorf("a change: %v", err)
	}
	if db.Fault() == nil {
		t.Error("there is no fault")
	}
	if err := errors.Join(os.Remove(dir), os.Rename(dir+".moved", dir)); err != nil {
		t.Fatal(err)
	}
	do(t, db.Update, put(record("back")))
	if db.Fault() != nil {
		t.Errorf("after it was put back: %v", db.Fault())
	}
	closed(t, db)
}

// TestLockedWithoutFiles checks that only one process at a time can use a data dir, even if its
// files are removed.
func TestLockedWithoutFiles(t *testing.T) {
	path := full(t)
	cmd := child(t, "hold", path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, logOf(path)} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	db, err := statedb.Open(path, statedb.Options{LockTimeout: 50 * time.Millisecond})
	if !errors.Is(err, statedb.ErrLocked) {
		t.Errorf("open: %v, %v, want ErrLocked", db, err)
	}
	if _, running, _ := statedb.Inspect(path); !running {
		t.Error("inspect does not see that the data dir is in use")
	}
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	equal(t, "volumes that are there again", len(ids(t, path)), 40)
}
