package statedb_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// full makes a database that has a value in every bucket, and returns its path.
func full(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state.db")
	db, err := statedb.Open(path, statedb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	do(t, db.Update, func(tx *statedb.Tx) error {
		for i := range 40 {
			tx.PutVolume(record(fmt.Sprintf("v%02d", i), "a", "b", "c"))
		}
		statedb.Plugins.Put(tx, plugin.Record{ID: "p", Info: plugin.Info{ID: "p", Driver: "d", NodeID: "n"}})
		statedb.Snapshots.Put(tx, intent("nightly"))
		statedb.SnapshotNames.Put(tx, intent("nightly").Named("snap-1"))
		statedb.RuntimeVolumes.Put(tx, runtimeVolume("data"))
		statedb.Registered.Put(tx, plugin.Definition{ID: "p", Type: "node", Socket: "/n"})
		statedb.Registered.Put(tx, plugin.Definition{ID: "p", Type: "controller", Instance: "1", Socket: "/c"})
		statedb.Memberships.Put(tx, shared.Membership{ClusterID: "c", Incarnation: 3, Registrations: []string{"r"}})
		owed := record("gone", "x")
		statedb.Leftovers.Put(tx, statedb.LeftoverOf(owed, time.Unix(7, 0).UTC()))
		tx.PutNode(statedb.Node{ID: "n", Boot: "b", Namespace: 4026531840, DataDir: "/d"})
		return nil
	})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestReopen checks that a reopened file has the values that were written.
func TestReopen(t *testing.T) {
	path := full(t)
	first := open(t, path, statedb.Options{})
	do(t, first.Update, func(tx *statedb.Tx) error {
		tx.DeleteVolume("v01")
		r, _ := tx.Volume("v02")
		r.Claims = map[string]volume.Claim{"b": r.Claims["b"]}
		tx.PutVolume(r)
		return nil
	})
	second := open(t, copied(t, path), statedb.Options{})
	for _, r := range first.Volumes() {
		got, _ := second.Volume(r.Volume.ID)
		equal(t, r.Volume.ID, got, r)
	}
	equal(t, "number of volumes", len(second.Volumes()), 39)
	equal(t, "plugins", statedb.Plugins.All(second), statedb.Plugins.All(first))
	equal(t, "node", second.Node(), first.Node())
	equal(t, "number of registered plugins", len(statedb.Registered.All(first)), 2)
	equal(t, "registered plugins", byType(statedb.Registered.All(second)), byType(statedb.Registered.All(first)))
	if len(statedb.Leftovers.All(second)) != 1 {
		t.Fatalf("debts: %+v", statedb.Leftovers.All(second))
	}
	got, want := statedb.Leftovers.All(second)[0], statedb.Leftovers.All(first)[0]
	got.Record.Claims, want.Record.Claims = nil, nil // the test compares the claims separately
	equal(t, "debt", got, want)
	do(t, second.Update, func(tx *statedb.Tx) error {
		if d, ok := statedb.Leftovers.Get(tx, statedb.StorageKey("d", "ext-gone")); !ok || d.Record.Volume.ID != "gone" {
			t.Errorf("the debt is %+v, %t", d, ok)
		}
		statedb.Leftovers.Delete(tx, statedb.StorageKey("d", "ext-gone"))
		statedb.Plugins.Delete(tx, "p")
		return nil
	})
	if len(statedb.Leftovers.All(second))+len(statedb.Plugins.All(second)) != 0 {
		t.Errorf("not forgotten: %+v, %+v", statedb.Leftovers.All(second), statedb.Plugins.All(second))
	}
}

// TestClaimKeys checks that deleting a volume also deletes all its claims, and that deleting a
// claim deletes no other claim.
func TestClaimKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	db := open(t, path, statedb.Options{})
	for _, r := range []volume.Record{record("v", "a", "b"), record("v2", "a"), record("w", "a")} {
		do(t, db.Update, put(r))
	}
	keys := func() (got []string) {
		peek(t, copied(t, path), func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte("claims")).ForEach(func(k, _ []byte) error {
				got = append(got, strings.ReplaceAll(string(k), "\x00", "/"))
				return nil
			})
		})
		return got
	}
	equal(t, "all", keys(), []string{"v/a", "v/b", "v2/a", "w/a"})
	do(t, db.Update, put(record("v", "b")))
	equal(t, "one claim gone", keys(), []string{"v/b", "v2/a", "w/a"})
	do(t, db.Update, func(tx *statedb.Tx) error { tx.DeleteVolume("v"); return nil })
	equal(t, "one volume gone", keys(), []string{"v2/a", "w/a"})
	do(t, db.Update, func(tx *statedb.Tx) error {
		tx.DeleteVolume("w")
		tx.PutVolume(record("w", "z"))
		return nil
	})
	equal(t, "deleted and made anew", keys(), []string{"v2/a", "w/z"})
}

func peek(t *testing.T, path string, fn func(*bbolt.Tx) error) {
	t.Helper()
	b, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.Update(fn), b.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestDrawing checks that the package comment lists the existing buckets and the form of their
// keys.
func TestDrawing(t *testing.T) {
	src, err := os.ReadFile("statedb.go")
	if err != nil {
		t.Fatal(err)
	}
	comment, _, _ := strings.Cut(string(src), "\npackage ")
	drawn, bucket := map[string][]string{}, ""
	for _, line := range strings.Split(comment, "\n") {
		if m := regexp.MustCompile(`^//\t(\S+)$`).FindStringSubmatch(line); m != nil {
			bucket = m[1]
			drawn[bucket] = nil
		}
		if m := regexp.MustCompile(`^//\t  ((?:<[^>]+>|\w+)(?: 0x00 <[^>]+>)*) `).FindStringSubmatch(line); m != nil {
			drawn[bucket] = append(drawn[bucket], m[1])
		}
	}
	found := map[string][]string{}
	peek(t, full(t), func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(k, _ []byte) error {
				found[string(name)] = append(found[string(name)], string(k))
				return nil
			})
		})
	})
	for bucket, keys := range found {
		shapes := drawn[bucket]
		if len(shapes) == 0 {
			t.Errorf("bucket %q is not in the drawing", bucket)
		}
		for _, key := range keys {
			if !slices.ContainsFunc(shapes, func(shape string) bool { return shaped(key, shape) }) {
				t.Errorf("key %q of bucket %q looks like none of %q in the drawing", key, bucket, shapes)
			}
		}
		for _, shape := range shapes {
			if !slices.ContainsFunc(keys, func(key string) bool { return shaped(key, shape) }) {
				t.Errorf("no key of bucket %q looks like %q in the drawing", bucket, shape)
			}
		}
	}
	if len(found) != len(drawn) {
		t.Errorf("the drawing has %d buckets, the file %d", len(drawn), len(found))
	}
}

// shaped reports whether a key matches a form such as "<one> 0x00 <other>" from the package
// comment. A word without angle brackets must match literally.
func shaped(key, shape string) bool {
	want, got := strings.Split(shape, " 0x00 "), strings.Split(key, "\x00")
	if len(want) != len(got) {
		return false
	}
	for i := range want {
		if !strings.HasPrefix(want[i], "<") && want[i] != got[i] {
			return false
		}
	}
	return true
}

// TestLocked checks that Open fails quickly if another process has locked the file. The error must
// be ErrLocked and contain the path.
func TestLocked(t *testing.T) {
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
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	for _, wait := range []time.Duration{0, 50 * time.Millisecond} {
		begun := time.Now()
		db, err := statedb.Open(path, statedb.Options{LockTimeout: wait})
		if !errors.Is(err, statedb.ErrLocked) || !strings.Contains(err.Error(), path) {
			t.Errorf("open: %v, %v, want ErrLocked and the path", db, err)
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("it took %v to find out", took)
		}
	}
	if err := statedb.Check(path); !errors.Is(err, statedb.ErrLocked) {
		t.Errorf("check: %v, want ErrLocked", err)
	}
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	open(t, path, statedb.Options{})
}

func byType(all []plugin.Definition) []plugin.Definition {
	slices.SortFunc(all, func(a, b plugin.Definition) int { return cmp.Compare(a.Type, b.Type) })
	return all
}

// TestRegisteredInOlderFile opens a file from a release that could not register plugins. The file
// contains no registered plugins, and can store them.
func TestRegisteredInOlderFile(t *testing.T) {
	path := full(t)
	peek(t, path, func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("registered")) })
	db := open(t, path, statedb.Options{})
	equal(t, "registered plugins", len(statedb.Registered.All(db)), 0)
	def := plugin.Definition{ID: "new", Socket: "/s"}
	do(t, db.Update, func(tx *statedb.Tx) error { statedb.Registered.Put(tx, def); return nil })
	again := open(t, copied(t, path), statedb.Options{})
	equal(t, "registered plugins", statedb.Registered.All(again), []plugin.Definition{def})
	do(t, again.Update, func(tx *statedb.Tx) error { statedb.Registered.Remove(tx, def); return nil })
	equal(t, "after the deletion", len(statedb.Registered.All(again)), 0)
}

// TestRefusedFiles checks that Open refuses a file that a newer release wrote or that has invalid
// content. The error must contain the path, and the file must not change.
func TestRefusedFiles(t *testing.T) {
	for name, tt := range map[string]struct {
		plant func(*bbolt.Tx) error
		words string
	}{
		"a newer schema": {set("meta", "schema", "3"), "written by a newer release (schema 3, this one knows 2)"},
		"a newer schema with other buckets": {func(tx *bbolt.Tx) error {
			return errors.Join(tx.DeleteBucket([]byte("debts")), set("meta", "schema", "7")(tx))
		}, "written by a newer release"},
		"a schema that is no number":          {set("meta", "schema", "latest"), `schema version "latest" is not a number`},
		"a volume that is no JSON":            {set("volumes", "v01", "{"), `volumes "v01"`},
		"a claim of no volume":                {set("claims", "nobody\x00a", `{"alloc":"a"}`), "belongs to no volume"},
		"a claim under another key":           {set("claims", "v01\x00z", `{"alloc":"a"}`), "belongs to no volume"},
		"a volume under another key":          {set("volumes", "x", `{"volume":{"id":"y"}}`), `volume "y" is stored under "x"`},
		"one storage volume twice":            {set("volumes", "x", `{"volume":{"id":"x","driver":"d","external_id":"ext-v01"}}`), "are one storage volume"},
		"a debt that is no JSON":              {set("debts", "d\x00e", "]"), "debts"},
		"a plugin that is no JSON":            {set("plugins", "p", "]"), `plugins "p"`},
		"a registered plugin that is no JSON": {set("registered", "p", "]"), `registered "p"`},
		"a snapshot that is no JSON":          {set("snapshots", "s", "]"), `snapshots "s"`},
		"a node that is no JSON":              {set("meta", "node", "]"), "invalid character"},
	} {
		path := full(t)
		peek(t, path, tt.plant)
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		db, err := statedb.Open(path, statedb.Options{})
		if err == nil {
			t.Errorf("%s: it is opened", name)
			err = db.Close()
		}
		if !strings.Contains(fmt.Sprint(err), tt.words) || !strings.Contains(fmt.Sprint(err), path) {
			t.Errorf("%s: %v, want the path and %q", name, err, tt.words)
		}
		after, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s: the file was changed (%v)", name, err)
		}
		if err := statedb.Check(path); !strings.Contains(name, "schema") && !strings.Contains(fmt.Sprint(err), tt.words) {
			t.Errorf("%s: check says %v, want %q", name, err, tt.words)
		}
	}
}

func set(bucket, key, value string) func(*bbolt.Tx) error {
	return func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucket)).Put([]byte(key), []byte(value)) }
}

// TestCheckMakesNothing checks that Check does not create a missing file.
func TestCheckMakesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	if err := statedb.Check(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("check: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the check: %v", err)
	}
}

// openDamaged opens files in a child process, because a panic caused by damage would end the
// process. It prints one line for each file.
func openDamaged(args []string) error {
	for _, path := range args {
		db, err := statedb.Open(path, statedb.Options{})
		if err != nil {
			fmt.Printf("refused %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		} else {
			fmt.Printf("opened %d\n", len(db.Volumes()))
			if err := db.Close(); err != nil {
				return err
			}
		}
		_ = statedb.Check(path) // any result is correct, but the call must return
	}
	return nil
}

// TestDamage damages each page of the file in turn. Open either returns an error with the path, or
// finds all volumes. The process never crashes.
func TestDamage(t *testing.T) {
	path := full(t)
	var used int64
	peek(t, path, func(tx *bbolt.Tx) error { used = tx.Size(); return nil })
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	whole = whole[:used]
	page := os.Getpagesize()
	damaged := map[string][]byte{
		"no database":     []byte("this is not a database, however long one looks at it"),
		"all zeros":       make([]byte, len(whole)),
		"cut to one page": whole[:page], "cut to two pages": whole[:2*page], "cut in half": whole[:len(whole)/2], "cut by a page": whole[:len(whole)-page],
	}
	for n := range len(whole) / page {
		for what, change := range map[string]func([]byte){
			"zeroed":   func(p []byte) { clear(p) },
			"all ones": func(p []byte) { copy(p, bytes.Repeat([]byte{0xff}, len(p))) },
			"its header flipped": func(p []byte) {
				for i := range 16 {
					p[i] ^= 0xff
				}
			},
			"its flags flipped": func(p []byte) { p[8] ^= 0x13 },
			"its count grown":   func(p []byte) { p[10], p[11] = 0xff, 0x7f },
			"an element moved":  func(p []byte) { p[16] ^= 0x40; p[20] ^= 0xff; p[24] ^= 0xff; p[29] ^= 0xff },
		} {
			raw := bytes.Clone(whole)
			change(raw[n*page : (n+1)*page])
			damaged[fmt.Sprintf("page %d %s", n, what)] = raw
		}
	}
	dir := t.TempDir()
	var names, paths []string
	for name, raw := range damaged {
		path := filepath.Join(dir, fmt.Sprintf("%d.db", len(paths)))
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		names, paths = append(names, name), append(paths, path)
	}
	out, err := child(t, "open", paths...).Output()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("%s: %v\n%.1000s", names[min(len(lines), len(names))-1], err, exit.Stderr)
	}
	for i, name := range names {
		if i >= len(lines) || lines[i] != "opened 40" && (!strings.HasPrefix(lines[i], "refused") || !strings.Contains(lines[i], paths[i])) {
			t.Fatalf("%s: %s", name, lines[min(i, len(lines)-1)])
		}
	}
}
