package statedb_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// backup returns the bytes of a database's backup.
func backup(t *testing.T, db *statedb.DB) []byte {
	t.Helper()
	b, err := db.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(b)
	if err = errors.Join(err, b.Close()); err != nil || int64(len(raw)) != b.Size {
		t.Fatalf("%d bytes of %d, %v", len(raw), b.Size, err)
	}
	return raw
}

// TestBackup checks that a backup also contains changes that are only in memory. The backup can be
// read, and it can replace the database file.
func TestBackup(t *testing.T) {
	db := open(t, full(t), statedb.Options{})
	do(t, saveNext(db), put(record("late", "a")))
	raw := backup(t, db)
	other, path := fresh(t, statedb.Options{})
	got, err := other.ReadBackup(bytes.NewReader(raw))
	if err != nil || got.Taken.IsZero() {
		t.Fatalf("taken %s, %v", got.Taken, err)
	}
	equal(t, "number of volumes", len(got.Volumes()), 41)
	for _, r := range got.Volumes() {
		want, _ := db.Volume(r.Volume.ID)
		equal(t, r.Volume.ID, r, want)
	}
	equal(t, "node", got.Node(), db.Node())
	equal(t, "debts", len(statedb.Leftovers.All(got)), 1)
	equal(t, "registered", len(statedb.Registered.All(got)), 2)
	equal(t, "snapshots", statedb.Snapshots.All(got), statedb.Snapshots.All(db))
	if n := len(other.Volumes()); n != 0 {
		t.Errorf("reading a backup made %d volumes", n)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*copy*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	in := filepath.Join(t.TempDir(), "state.db")
	if err := os.WriteFile(in, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	again := open(t, in, statedb.Options{})
	equal(t, "in place of the file", len(again.Volumes()), 41)
	do(t, again.Update, func(tx *statedb.Tx) error {
		for i := range 200 { // the database grows, and its new pages overwrite the seal
			tx.PutVolume(record(fmt.Sprintf("new%d", i), "a", "b"))
		}
		return nil
	})
	// A plain copy without a seal can also be read.
	raw, err = os.ReadFile(copied(t, full(t)))
	if err != nil {
		t.Fatal(err)
	}
	if got, err = other.ReadBackup(bytes.NewReader(raw)); err != nil || len(got.Volumes()) != 40 || !got.Taken.IsZero() {
		t.Errorf("a plain copy: %d volumes, taken %s, %v", len(got.Volumes()), got.Taken, err)
	}
}

// TestReadBackupRefuses checks that ReadBackup refuses damaged backups and unrelated files. The
// error names the reason.
func TestReadBackupRefuses(t *testing.T) {
	db := open(t, full(t), statedb.Options{})
	whole := backup(t, db)
	flipped := bytes.Clone(whole)
	flipped[bytes.Index(flipped, []byte("ext-v07"))] ^= 1
	resealed := bytes.Clone(whole)
	resealed[len(resealed)-4096+int64Index(resealed, "bytes ")] = '9'
	plain := filepath.Join(t.TempDir(), "plain.db")
	if err := os.WriteFile(plain, whole[:len(whole)-4096], 0o600); err != nil {
		t.Fatal(err)
	}
	edited := func(fn func(*bbolt.Tx) error) []byte {
		path := copied(t, plain)
		peek(t, path, fn)
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	for name, tt := range map[string]struct {
		raw  []byte
		kind error
		want string
	}{
		"empty":             {nil, volume.ErrInvalid, "the file is empty"},
		"text":              {[]byte("hello, world\n"), volume.ErrInvalid, "is not a backup"},
		"zeros":             {make([]byte, 1<<20), volume.ErrInvalid, "is not a backup"},
		"a flipped bit":     {flipped, volume.ErrInvalid, "its content does not match its checksum"},
		"a broken seal":     {resealed, volume.ErrInvalid, "its seal belongs to another file"},
		"half of it":        {whole[:len(whole)/2], volume.ErrInvalid, "a part of it is missing"},
		"a missing page":    {append(bytes.Clone(whole[:len(whole)-8192]), whole[len(whole)-4096:]...), volume.ErrInvalid, "its seal belongs to another file"},
		"a newer schema":    {edited(set("meta", "schema", "99")), volume.ErrRefused, "it was written by a newer release (schema 99"},
		"no schema":         {edited(set("meta", "schema", "x")), volume.ErrInvalid, "damaged"},
		"another database":  {edited(func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("meta")) }), volume.ErrInvalid, "damaged"},
		"a bad record":      {edited(set("volumes", "v07", "{")), volume.ErrInvalid, "damaged"},
		"against the rules": {edited(set("snapshots", "x", `{"plugin_id":"p","driver":"d","name":"nightly","volumes":["a"]}`)), volume.ErrInvalid, "damaged"},
		"a claim of nobody": {edited(set("claims", "nobody\x00a", `{"alloc":"a"}`)), volume.ErrInvalid, "belongs to no volume"},
	} {
		_, err := db.ReadBackup(bytes.NewReader(tt.raw))
		if !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
	if _, err := db.ReadBackup(io.MultiReader(bytes.NewReader(whole[:5000]), iotest.ErrReader(errors.New("gone")))); !errors.Is(err, volume.ErrInvalid) || !strings.Contains(err.Error(), "cut short: gone") {
		t.Errorf("cut short: %v", err)
	}
	equal(t, "volumes of the one that read", len(db.Volumes()), 40)
}

func int64Index(raw []byte, what string) int {
	return bytes.Index(raw[len(raw)-4096:], []byte(what)) + len(what)
}

// TestCopyLeft checks that the next start removes the temporary file of an agent that was killed
// during a copy.
func TestCopyLeft(t *testing.T) {
	path := full(t)
	left := filepath.Join(filepath.Dir(path), "state.db.copy")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, path, statedb.Options{})
	if _, err := os.Lstat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is there still: %v", err)
	}
}

// TestReadOlderBackup checks that a backup with an older schema is migrated, and that the open
// database does not change.
func TestReadOlderBackup(t *testing.T) {
	db := open(t, full(t), statedb.Options{})
	raw := backup(t, db)
	got, err := db.ReadBackupMigrating(bytes.NewReader(raw), steps...)
	if err != nil || len(got.Volumes()) != 40 || got.Volumes()[0].Volume.Name != "four" {
		t.Errorf("got %d volumes, %v", len(got.Volumes()), err)
	}
	if r, _ := db.Volume("v07"); r.Volume.Name != "" {
		t.Errorf("the database has the name %q", r.Volume.Name)
	}
	if _, err := db.ReadBackupMigrating(bytes.NewReader(raw), rename("x", "y")); !errors.Is(err, volume.ErrInvalid) || !strings.Contains(err.Error(), "from schema 1 to 2") {
		t.Errorf("a migration that fails: %v", err)
	}
}
