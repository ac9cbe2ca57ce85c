package statedb_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/statedb"
)

// rename returns a migration that changes the name of every volume. The migration fails if an
// earlier migration did not run, or if it runs a second time.
func rename(from, to string) statedb.Step {
	return func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte("volumes"))
		var keys, values [][]byte
		if err := b.ForEach(func(k, v []byte) error {
			keys, values = append(keys, bytes.Clone(k)), append(values, bytes.Clone(v))
			return nil
		}); err != nil {
			return err
		}
		for i, k := range keys {
			is, was := []byte(`"name":"`+to+`"`), []byte(`"name":"`+from+`"`)
			if !bytes.Contains(values[i], was) {
				return fmt.Errorf("volume %q is not named %q", k, from)
			}
			if err := b.Put(k, bytes.Replace(values[i], was, is, 1)); err != nil {
				return err
			}
		}
		return nil
	}
}

var steps = []statedb.Step{rename("", "two"), rename("two", "three"), rename("three", "four")}

// names runs the migrations on a file and returns the name that all its volumes then have.
func names(t *testing.T, path string, steps ...statedb.Step) string {
	t.Helper()
	db, err := statedb.OpenMigrating(path, statedb.Options{}, steps...)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range db.Volumes() {
		got = append(got, r.Volume.Name)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if got = slices.Compact(got); len(got) != 1 || len(db.Volumes()) != 40 {
		t.Fatalf("%d volumes are named %q", len(db.Volumes()), got)
	}
	return got[0]
}

// kept returns the suffixes of the copies that migrations made.
func kept(t *testing.T, path string) []string {
	t.Helper()
	found, err := filepath.Glob(path + ".*")
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range found {
		found[i] = strings.TrimPrefix(name, path)
	}
	return found
}

// TestMigrations checks that migrations run in order, and that a copy of the file is kept before
// they run. A second start must migrate nothing.
func TestMigrations(t *testing.T) {
	path := full(t)
	for range 2 {
		if got := names(t, path, steps...); got != "four" {
			t.Errorf("volumes are named %q", got)
		}
		equal(t, "kept", kept(t, path), []string{".schema-1"})
	}
	if got := names(t, path+".schema-1"); got != "" {
		t.Errorf("in the file that was kept volumes are named %q", got)
	}
	if err := statedb.Check(path + ".schema-1"); err != nil {
		t.Error(err)
	}
	_, err := statedb.Open(path, statedb.Options{})
	if !strings.Contains(fmt.Sprint(err), "schema 4, this one knows 2") {
		t.Errorf("the release before it says %v", err)
	}
}

// TestKeptStays checks that a migration never overwrites a copy of an earlier file. If the same
// file is migrated again, no second copy is made. If a different file is migrated, its copy gets
// another name.
func TestKeptStays(t *testing.T) {
	path := full(t)
	old := copied(t, path)
	names(t, path, steps...)
	first, err := os.ReadFile(path + ".schema-1")
	if err != nil {
		t.Fatal(err)
	}
	back := func(from string) {
		t.Helper()
		raw, err := os.ReadFile(from)
		if err := errors.Join(err, os.WriteFile(path, raw, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	back(old)
	names(t, path, steps...)
	equal(t, "kept after the same again", kept(t, path), []string{".schema-1"})
	peek(t, old, func(tx *bbolt.Tx) error { return tx.Bucket([]byte("plugins")).Delete([]byte("p")) })
	back(old)
	names(t, path, steps...)
	equal(t, "kept after another", kept(t, path), []string{".schema-1", ".schema-1.2"})
	again, err := os.ReadFile(path + ".schema-1")
	if err != nil || !bytes.Equal(again, first) {
		t.Errorf("the first file that was kept is another now (%v)", err)
	}
}

// TestMigrationFails checks that a failed migration leaves the file as the previous migration left
// it. The next start must continue with the failed migration.
func TestMigrationFails(t *testing.T) {
	path := full(t)
	broken := func(tx *bbolt.Tx) error {
		return errors.Join(tx.Bucket([]byte("volumes")).Delete([]byte("v00")), errRefused)
	}
	for range 2 {
		_, err := statedb.OpenMigrating(path, statedb.Options{}, steps[0], broken, steps[2])
		if !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "from schema 2 to 3") || !strings.Contains(err.Error(), path) {
			t.Fatalf("it says %v", err)
		}
		var d *statedb.Damage
		if errors.As(err, &d) {
			t.Error("a migration that fails is taken for damage")
		}
	}
	if got := names(t, copied(t, path), steps[0]); got != "two" {
		t.Errorf("after the failure volumes are named %q", got)
	}
	if got := names(t, path, steps...); got != "four" {
		t.Errorf("in the end volumes are named %q", got)
	}
	equal(t, "kept", kept(t, path), []string{".schema-1", ".schema-2"})
}

// migrateAndDie migrates a file. When the database reaches the given point for the n-th time,
// migrateAndDie kills its own process.
func migrateAndDie(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	_, err = statedb.OpenMigrating(args[0], statedb.Options{Tap: func(statedb.Point) {
		if n--; n == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // the kill ends this process, so no error can be handled
			<-time.After(time.Minute)
		}
	}}, steps...)
	return err
}

// TestMigrationKilled kills the agent at every point of a migration, and checks that the next start
// completes the migration.
func TestMigrationKilled(t *testing.T) {
	points := 1 + 2*len(steps) // the point Kept once, and two points for each migration
	for n := 1; n <= points+1; n++ {
		path := full(t)
		err := child(t, "migrate", path, strconv.Itoa(n)).Run()
		var exit *exec.ExitError
		if killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL; killed != (n <= points) || err != nil && !killed {
			t.Fatalf("point %d: the child ended with %v", n, err)
		}
		if got := names(t, path, steps...); got != "four" {
			t.Errorf("point %d: volumes are named %q", n, got)
		}
		if got := names(t, path+".schema-1"); got != "" {
			t.Errorf("point %d: in the file that was kept volumes are named %q", n, got)
		}
	}
	t.Logf("%d points", points)
}

// migrateFull migrates a file on a file system without space for a copy of the file.
func migrateFull(args []string) error {
	dir := args[0]
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make / private: %w", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	path := filepath.Join(dir, "state.db")
	raw, err := os.ReadFile(args[1])
	if err := errors.Join(err, os.WriteFile(path, raw, 0o600), fillUp(filepath.Join(dir, "ballast"))); err != nil {
		return err
	}
	before, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	_, err = statedb.OpenMigrating(path, statedb.Options{}, steps...)
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "cannot keep a copy") {
		return fmt.Errorf("on a full disk: %w", err)
	}
	after, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(before, after) {
		return fmt.Errorf("the file was changed (%w)", err)
	}
	if left, err := filepath.Glob(path + ".*"); err != nil || len(left) > 0 {
		return fmt.Errorf("left behind: %q (%w)", left, err)
	}
	if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
		return err
	}
	db, err := statedb.OpenMigrating(path, statedb.Options{}, steps...)
	if err != nil {
		return fmt.Errorf("with room again: %w", err)
	}
	return errors.Join(db.Close(), unix.Unmount(dir, 0))
}

// TestMigrationDiskFull checks that a migration does not start if there is no space for the copy.
func TestMigrationDiskFull(t *testing.T) {
	inNamespace(t, "migrate-full", t.TempDir(), full(t))
}
