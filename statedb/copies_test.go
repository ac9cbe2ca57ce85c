package statedb_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/volagent/volagent/statedb"
)

func copiesOf(path string) []string {
	dir := filepath.Dir(path)
	return []string{filepath.Join(dir, "state.copy-1"), filepath.Join(dir, "state.copy-2")}
}

// awaitCopy waits until the copy at a path contains the wanted number of volumes.
func awaitCopy(t *testing.T, path string, want int) {
	t.Helper()
	reader, _ := fresh(t, statedb.Options{})
	for end := time.Now().Add(time.Minute); ; {
		if f, err := os.Open(path); err == nil {
			got, rerr := reader.ReadBackup(f)
			if err := errors.Join(rerr, f.Close()); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if len(got.Volumes()) == want && !got.Taken.IsZero() {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not come to hold %d volumes", path, want)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// TestCopies checks that the database makes a copy soon after a change. While the newest copy is
// young, the database makes no other copy. When it makes the next copy, the previous copy becomes
// the older one.
func TestCopies(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	db := open(t, path, statedb.Options{})
	if db.HasCopies() {
		t.Error("there is a copy of a database without a change")
	}
	do(t, db.Update, put(record("one")))
	awaitCopy(t, copiesOf(path)[0], 1)
	do(t, db.Update, put(record("two")))
	for age, want := range map[time.Duration]time.Duration{0: 5 * time.Minute, time.Minute: 4 * time.Minute, time.Hour: 2 * time.Second} {
		if got := statedb.CopyWait(age); got != want {
			t.Errorf("with a copy of %v the next one comes after %v, want %v", age, got, want)
		}
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(copiesOf(path)[0], old, old); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, path, statedb.Options{})
	do(t, again.Update, put(record("three")))
	awaitCopy(t, copiesOf(path)[0], 3)
	awaitCopy(t, copiesOf(path)[1], 1)
}

// TestLastCopy checks that LastCopy returns the newest readable copy.
func TestLastCopy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	db := open(t, path, statedb.Options{})
	if _, err := db.LastCopy(); !errors.Is(err, os.ErrNotExist) || db.HasCopies() {
		t.Errorf("with no copy: %v", err)
	}
	for i, ids := range [][]string{{"one"}, {"two"}} {
		for _, id := range ids {
			do(t, db.Update, put(record(id)))
		}
		if err := db.KeepCopy(); err != nil {
			t.Fatal(err)
		}
		if got, err := db.LastCopy(); err != nil || len(got.Volumes()) != i+1 {
			t.Errorf("copy %d has %d volumes: %v", i, len(got.Volumes()), err)
		}
	}
	raw, err := os.ReadFile(copiesOf(path)[0])
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/3] ^= 0xff
	if err := os.WriteFile(copiesOf(path)[0], raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := db.LastCopy(); err != nil || len(got.Volumes()) != 1 {
		t.Errorf("with a newest one that is damaged: %d volumes, %v", len(got.Volumes()), err)
	}
	for _, p := range copiesOf(path) {
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.LastCopy(); err == nil || !db.HasCopies() {
		t.Errorf("with none that can be read: %v", err)
	}
}

// TestNoCopyOfDamage checks that a copy is kept if the database file is damaged. The damaged
// content must not replace the copy.
func TestNoCopyOfDamage(t *testing.T) {
	path := full(t)
	db, err := statedb.Open(path, statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.KeepCopy(); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(copiesOf(path)[0])
	if err = errors.Join(err, db.Spoil(set("volumes", "v01", "{"))); err != nil {
		t.Fatal(err)
	}
	if err := db.KeepCopy(); err == nil {
		t.Error("a damaged database is copied")
	}
	after, err := os.Stat(copiesOf(path)[0])
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the copy was replaced (%v)", err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// TestCopyBeforeMigration checks that the database makes a copy of the state before a migration.
func TestCopyBeforeMigration(t *testing.T) {
	path := full(t)
	db, err := statedb.OpenMigrating(path, statedb.Options{}, steps...)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	reader, _ := fresh(t, statedb.Options{})
	f, err := os.Open(copiesOf(path)[0])
	if err != nil {
		t.Fatal(err)
	}
	got, err := reader.ReadBackup(f)
	if err := errors.Join(err, f.Close()); err != nil || len(got.Volumes()) != 40 || got.Volumes()[0].Volume.Name != "" {
		t.Errorf("the copy has %d volumes: %v", len(got.Volumes()), err)
	}
}
