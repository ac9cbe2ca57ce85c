package statedb_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// told makes a database that has already reported its claims as mounted, although no commit of this
// change has reached the disk. It returns the path of a copy of the files at that moment.
func told(t *testing.T, ids ...string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "state.db")
	db, err := statedb.Open(path, statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		do(t, db.Update, put(record(id)))
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return died(t, path, func(db *statedb.DB) {
		for _, id := range ids {
			take(t, db, id)
		}
	})
}

// died opens a database whose commits do not reach the disk, and runs change. It returns the path
// of a copy of the files afterwards, as a killed agent would leave them.
func died(t *testing.T, path string, change func(*statedb.DB)) (dead string) {
	t.Helper()
	goOn := make(chan struct{})
	db, err := statedb.Open(path, statedb.Options{Tap: func(p statedb.Point) {
		if p == statedb.BeforeCommit {
			<-goOn
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	change(db)
	dead = killed(t, path)
	close(goOn)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if size := sizeOf(t, path); size != 0 {
		t.Errorf("after a stop in order the log has %d bytes", size)
	}
	return dead
}

func take(t *testing.T, db *statedb.DB, id string) {
	t.Helper()
	err := saveVolume(t.Context(), db, id, func(r volume.Record) (volume.Record, volume.Saving) {
		r.Claims = map[string]volume.Claim{"web": {Alloc: "web", State: volume.Mounted, Mount: &volume.MountIdentity{ID: 7}}}
		return r, volume.SaveAtOnce
	})
	if err != nil {
		t.Fatal(err)
	}
}

func sizeOf(t *testing.T, path string) int64 {
	t.Helper()
	st, err := os.Stat(strings.TrimSuffix(path, ".db") + ".log")
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

func taken(db *statedb.DB, id string) bool {
	r, ok := db.Volume(id)
	c := r.Claims["web"]
	return ok && c.State == volume.Mounted && c.Mount != nil && c.Mount.ID == 7
}

// TestToldOutlives checks that a reported change survives the end of the agent, even if its commit
// was never completed. The next two agents must both have the change.
func TestToldOutlives(t *testing.T) {
	path := told(t, "a", "b")
	s, _, err := statedb.Inspect(path)
	if err != nil || len(s.Volumes()) != 2 || s.Volumes()[0].Claims["web"].State != volume.Mounted {
		t.Errorf("inspected: %+v, %v", s.Volumes(), err)
	}
	for range 2 {
		db, err := statedb.Open(path, statedb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if !taken(db, "a") || !taken(db, "b") {
			t.Error("a claim that was taken is not")
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if size := sizeOf(t, path); size != 0 {
			t.Errorf("the log has %d bytes that are committed", size)
		}
	}
}

// TestOldLog checks that the database ignores old log lines. A line is old if its volume was
// changed, deleted or replaced after the line was written.
func TestOldLog(t *testing.T) {
	for name, change := range map[string]func(*statedb.Tx){
		"changed since": func(tx *statedb.Tx) {
			for range 3 {
				r, _ := tx.Volume("a")
				r.Claims = nil
				tx.PutVolume(r)
			}
		},
		"gone": func(tx *statedb.Tx) { tx.DeleteVolume("a") },
		"another": func(tx *statedb.Tx) {
			r := record("a")
			r.Volume.ExternalID = "another"
			tx.PutVolume(r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := told(t, "a")
			log := strings.TrimSuffix(path, ".db") + ".log"
			raw, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			// The test removes the log, because an older release without a log leaves no such file.
			if err := os.Remove(log); err != nil {
				t.Fatal(err)
			}
			db, err := statedb.Open(path, statedb.Options{})
			if err != nil {
				t.Fatal(err)
			}
			do(t, db.Update, func(tx *statedb.Tx) error { change(tx); return nil })
			if err := errors.Join(db.Close(), os.WriteFile(log, raw, 0o600)); err != nil {
				t.Fatal(err)
			}
			db, err = statedb.Open(path, statedb.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if taken(db, "a") {
				t.Error("what was true once is taken for new")
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestLogOfDeletedRecord deletes a record and adds it again, as the agent does with the record of a
// shared volume. The log still has newer-looking lines of the deleted record. After a kill of the
// agent, the added record is unchanged, also if it was added by the agent that was started then.
func TestLogOfDeletedRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	db, err := statedb.Open(path, statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	do(t, db.Update, put(record("a")))
	do(t, db.Update, put(record("b")))
	for range 5 {
		take(t, db, "a")
	}
	do(t, db.Update, func(tx *statedb.Tx) error { tx.DeleteVolume("a"); return nil })
	absent := killed(t, path)
	do(t, db.Update, put(record("a", "new")))
	present := killed(t, path)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	for _, path := range []string{present, absent} {
		db, err := statedb.Open(path, statedb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if path == absent {
			do(t, db.Update, put(record("a", "new")))
		}
		if r, _ := db.Volume("a"); len(r.Claims) != 1 || r.Claims["new"].Alloc != "new" {
			t.Errorf("after the kill, the claims are %v", r.Claims)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killed copies the files of an idle database and its log, as a killed agent would leave them. It
// returns the path of the copy.
func killed(t *testing.T, path string) (dead string) {
	t.Helper()
	dead = filepath.Join(t.TempDir(), "state.db")
	for _, end := range []string{".db", ".log"} {
		raw, err := os.ReadFile(strings.TrimSuffix(path, ".db") + end)
		if err == nil {
			err = os.WriteFile(strings.TrimSuffix(dead, ".db")+end, raw, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dead
}

// TestDamagedLog truncates or damages a log at every offset. The lines before the offset must
// remain valid. Lines that the agent appends later must also be valid.
func TestDamagedLog(t *testing.T) {
	path := told(t, "a", "b")
	log := strings.TrimSuffix(path, ".db") + ".log"
	whole, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	bolt, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first := bytes.IndexByte(whole, '\n') + 1
	check := func(what string, raw []byte, a, b bool) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, bolt, 0o600), os.WriteFile(log, raw, 0o600)); err != nil {
			t.Fatal(err)
		}
		db, err := statedb.Open(path, statedb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if taken(db, "a") != a || taken(db, "b") != b {
			t.Errorf("%s: a is taken: %t, b: %t", what, taken(db, "a"), taken(db, "b"))
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	check("whole", whole, true, true)
	check("none", nil, false, false)
	for _, at := range []int{0, 1, first / 2, first - 1} {
		check("cut in the first line", whole[:at], false, false)
		damaged := bytes.Clone(whole)
		damaged[at] ^= 4
		check("damaged in the first line", damaged, false, false)
		check("cut in the second line", whole[:first+at], true, false)
	}
	// The agent must remove the damaged line before it appends the next line. Otherwise the
	// appended line would be lost.
	if err := errors.Join(os.WriteFile(path, bolt, 0o600), os.WriteFile(log, whole[:first+4], 0o600)); err != nil {
		t.Fatal(err)
	}
	again, err := os.ReadFile(strings.TrimSuffix(died(t, path, func(db *statedb.DB) { take(t, db, "b") }), ".db") + ".log")
	if err != nil {
		t.Fatal(err)
	}
	check("told after damage", again, true, true)
	check("zeros after the first line", append(bytes.Clone(whole[:first]), make([]byte, 4096)...), true, false)
}

// TestNoLog checks that a database without a log commits each change before it reports the change.
func TestNoLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	if err := os.Mkdir(strings.TrimSuffix(path, ".db")+".log", 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := statedb.Open(path, statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.NoLog(); err == nil || !strings.Contains(err.Error(), "state.log") {
		t.Errorf("there is no log, because of: %v", err)
	}
	do(t, db.Update, put(record("a")))
	before := db.Commits()
	take(t, db, "a")
	if db.Commits() != before+1 {
		t.Error("it was told and neither logged nor committed")
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}
