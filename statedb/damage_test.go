package statedb_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/statedb"
)

// TestSetAside checks that SetAside renames a damaged file without changing its content. A file
// does not count as damaged if a newer release may be able to read it, or if reading it fails only
// at present.
func TestSetAside(t *testing.T) {
	page := os.Getpagesize()
	shape := func(fn func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			raw, err := os.ReadFile(path)
			if err := errors.Join(err, os.WriteFile(path, fn(raw), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	plant := func(fn func(*bbolt.Tx) error) func(*testing.T, string) {
		return func(t *testing.T, path string) { peek(t, path, fn) }
	}
	for name, tt := range map[string]struct {
		change  func(*testing.T, string)
		damaged bool
	}{
		"garbage":             {shape(func([]byte) []byte { return bytes.Repeat([]byte("nonsense"), 4096) }), true},
		"a few bytes":         {shape(func([]byte) []byte { return []byte("x") }), true},
		"one page":            {shape(func(b []byte) []byte { return b[:page] }), true},
		"a bad magic":         {shape(func(b []byte) []byte { b[16] ^= 1; b[page+16] ^= 1; return b }), true},
		"a bad checksum":      {shape(func(b []byte) []byte { b[40] ^= 1; b[page+40] ^= 1; return b }), true},
		"a lost end":          {shape(func(b []byte) []byte { return b[:3*page] }), true},
		"a value not JSON":    {plant(set("volumes", "v01", "{")), true},
		"an empty schema":     {plant(set("meta", "schema", "")), true},
		"schema 0":            {plant(set("meta", "schema", "0")), true},
		"no meta":             {plant(func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("meta")) }), true},
		"a newer schema":      {plant(set("meta", "schema", "9")), false},
		"nothing wrong":       {func(*testing.T, string) {}, false},
		"a new, empty file":   {shape(func([]byte) []byte { return nil }), false},
		"a directory instead": {func(t *testing.T, path string) { _ = errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }, false},
	} {
		path := full(t)
		tt.change(t, path)
		before, _ := os.ReadFile(path) // fails for one case, in which the path is a directory
		db, err := statedb.Open(path, statedb.Options{})
		if err == nil {
			err = db.Close()
		}
		var d *statedb.Damage
		if errors.As(err, &d) != tt.damaged {
			t.Errorf("%s: damaged is %t, want %t: %v", name, !tt.damaged, tt.damaged, err)
		}
		if d == nil {
			continue
		}
		kept, err := d.SetAside()
		if err != nil || !strings.HasPrefix(kept, path+".damaged-2") {
			t.Fatalf("%s: kept as %q: %v", name, kept, err)
		}
		after, err := os.ReadFile(kept)
		if err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s: what is kept is not what was there (%v)", name, err)
		}
		db, err = statedb.Open(path, statedb.Options{})
		if err != nil {
			t.Fatalf("%s: no new file is made: %v", name, err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
		if _, err := d.SetAside(); !errors.Is(err, statedb.ErrLocked) {
			t.Errorf("%s: a file that was made meanwhile is set aside: %v", name, err)
		}
		open(t, path, statedb.Options{})
	}
}

// TestSetAsideTwice renames two damaged files within the same second. Both files must be kept.
func TestSetAsideTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	seen := map[string]bool{}
	for range 3 {
		if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := statedb.Open(path, statedb.Options{})
		var d *statedb.Damage
		if !errors.As(err, &d) {
			t.Fatal(err)
		}
		kept, err := d.SetAside()
		if err != nil {
			t.Fatal(err)
		}
		seen[kept] = true
	}
	if len(seen) != 3 {
		t.Errorf("kept are %v", seen)
	}
}

// traced returns a command that runs the test binary in the given role under strace. It makes
// strace inject errors into the system calls on one file.
func traced(t *testing.T, path, inject, role string, args ...string) *exec.Cmd {
	t.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("strace is not installed")
	}
	cmd := child(t, role, args...)
	argv := []string{"strace", "-f", "-qq", "-o", "/dev/null", "-P", path, "-e", "trace=pread64,read,fdatasync", "-e", "inject=" + inject, os.Args[0]}
	cmd.Path, cmd.Args = mustLook(t, "strace"), append(argv, args...)
	return cmd
}

func mustLook(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestUnreadable checks that a file with read errors does not count as damaged, even though bbolt
// reports it as invalid.
func TestUnreadable(t *testing.T) {
	path := full(t)
	out, err := traced(t, path, "pread64,read:error=EIO", "open", path).Output()
	if err != nil || !strings.Contains(string(out), "refused") || !strings.Contains(string(out), "input/output error") || strings.Contains(string(out), "damaged") {
		t.Errorf("%v\n%s", err, out)
	}
}

// flaky makes changes on storage on which every third sync of a thread fails. It prints each
// acknowledged change, and ends when its last change is acknowledged.
func flaky(args []string) error {
	db, err := statedb.Open(args[0], statedb.Options{})
	if err != nil {
		return err
	}
	for i := 0; i < 60; i++ {
		id := fmt.Sprintf("v%02d", i)
		err := db.Update(context.Background(), put(record(id, "a", "b")))
		if err == nil {
			fmt.Println(id)
		}
		if _, ok := db.Volume(id); ok != (err == nil) {
			return fmt.Errorf("%s: %w, and it is there: %t", id, err, ok)
		}
		// This change also deletes a claim of the volume "base". If the database refuses the
		// change, the claim must remain.
		r := record("base", "x", "y")
		if _, ok := db.Volume("base"); ok {
			r = record("base", "y")
			r.Node.Seq = 2
		}
		if err := db.Update(context.Background(), put(r)); err == nil {
			fmt.Printf("base=%d\n", len(r.Claims))
		}
	}
	for range 20 {
		if err = db.Update(context.Background(), put(record("last"))); err == nil {
			break
		}
	}
	fmt.Println("last")
	return errors.Join(err, db.Close())
}

// TestFailedSync checks that a change does not appear later if the database has refused it because
// of a failed sync. bbolt may already have written the change to the file.
func TestFailedSync(t *testing.T) {
	path := full(t)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(func() error {
		db, err := statedb.Open(path, statedb.Options{})
		if err != nil {
			return err
		}
		return db.Close()
	}()); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, when := range []string{"3+3", "2+4", "4+5"} {
		work := copied(t, path)
		cmd := traced(t, work, "fdatasync:error=EIO:when="+when, "flaky", work)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v\n%s%s", err, out, errs.Bytes())
		}
		want, base := map[string]bool{}, ""
		for _, line := range strings.Fields(string(out)) {
			if n, ok := strings.CutPrefix(line, "base="); ok {
				base = n
				continue
			}
			want[line] = true
		}
		if base != "" {
			want["base"] = true
		}
		refused += 61 - len(want)
		got := ids(t, work)
		equal(t, "on disk", got, want)
		db := open(t, copied(t, work), statedb.Options{})
		if r, ok := db.Volume("base"); ok && fmt.Sprint(len(r.Claims)) != base {
			t.Errorf("base has %d claims, %s were acknowledged", len(r.Claims), base)
		}
	}
	if refused < 10 {
		t.Errorf("only %d changes were refused", refused)
	}
	t.Logf("%d changes were refused", refused)
}

// TestDamageInUse damages the file of an open database in a way that only a write detects. This
// write and all later ones must fail. The agent must not crash, and Close must return.
func TestDamageInUse(t *testing.T) {
	path := full(t)
	db, err := statedb.Open(path, statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(bytes.Repeat([]byte{0xff}, len(raw)-2*os.Getpagesize()), int64(2*os.Getpagesize()))
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := db.Update(t.Context(), put(record("v"))); !strings.Contains(fmt.Sprint(err), "it is damaged") {
			t.Errorf("a change of a damaged file: %v", err)
		}
	}
	if _, ok := db.Volume("v39"); !ok || db.Fault() == nil {
		t.Errorf("what was known is there: %t; the fault is %v", ok, db.Fault())
	}
	if n := db.Failures(); n < 2 {
		t.Errorf("%d commits failed", n)
	}
	if err := db.Close(); err == nil {
		t.Error("it is closed as if nothing was")
	}
	var d *statedb.Damage
	if _, err := statedb.Open(path, statedb.Options{}); !errors.As(err, &d) {
		t.Errorf("the next start: %v", err)
	} else if _, err := d.SetAside(); err != nil {
		t.Error(err)
	}
}

// TestVerify checks that Verify finds errors in the file of an open database, and does not disturb
// the database.
func TestVerify(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*bbolt.Tx) error
		says   string
	}{
		"nothing wrong":          {func(*bbolt.Tx) error { return nil }, ""},
		"a value not JSON":       {set("volumes", "v01", "{"), "v01"},
		"a claim with no volume": {set("claims", "nobody\x00a", `{"alloc":"a"}`), "nobody"},
		"no bucket":              {func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("plugins")) }, "plugins"},
	} {
		path := full(t)
		db, err := statedb.Open(path, statedb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Verify(); err != nil {
			t.Errorf("%s: before: %v", name, err)
		}
		if err := db.Spoil(tt.change); err != nil {
			t.Fatal(err)
		}
		err = db.Verify()
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}
