package statedb_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// crafted returns files with invalid pages, which bbolt must not open. Most of them would make
// bbolt allocate memory without limit, or read memory outside the file. The field says is the
// expected part of the error.
func crafted(t testing.TB) map[string]struct {
	raw  []byte
	says string
} {
	t.Helper()
	plain, root, bucketRoot := craftable(t)
	size, order := os.Getpagesize(), binary.NativeEndian
	edit := func(change func(page []byte)) []byte {
		raw := bytes.Clone(plain)
		change(raw[bucketRoot*size:])
		return raw
	}
	branch := func(child uint64) func([]byte) {
		return func(page []byte) {
			order.PutUint16(page[8:], 1)  // the flag of a branch page
			order.PutUint16(page[10:], 1) // the page has one child
			order.PutUint32(page[16:], 16)
			order.PutUint32(page[20:], 1)
			order.PutUint64(page[24:], child)
		}
	}
	type file = struct {
		raw  []byte
		says string
	}
	return map[string]file{
		"a page that is its own child":       {edit(branch(uint64(bucketRoot))), "is used twice"},
		"a page above itself as its child":   {edit(branch(uint64(root))), "is used twice"},
		"a child beyond the file":            {edit(branch(1 << 40)), "is referenced"},
		"a meta page as a child":             {edit(branch(0)), "is referenced"},
		"a page that is continued for ever":  {edit(func(p []byte) { order.PutUint32(p[12:], 1<<31) }), "beyond the end of the file"},
		"a page of too many keys":            {edit(func(p []byte) { order.PutUint16(p[10:], 0xffff) }), "points to an invalid place for its data"},
		"a value beyond its page":            {edit(func(p []byte) { order.PutUint32(p[16+12:], 1<<30) }), "points to an invalid place for its data"},
		"values that share their bytes":      {edit(func(p []byte) { order.PutUint32(p[32+4:], order.Uint32(p[16+4:])-16) }), "points to an invalid place for its data"},
		"a page under another number":        {edit(func(p []byte) { order.PutUint64(p, 77) }), "has the number 77"},
		"a page that is no part of a tree":   {edit(func(p []byte) { order.PutUint16(p[8:], 0x10) }), "is not a page of a tree"},
		"a value that is taken for a bucket": {edit(func(p []byte) { order.PutUint32(p[16:], 1) }), "is referenced"},
	}
}

// craftable returns a file with a bucket whose content is on a separate leaf page. It also returns
// the numbers of the tree's root page and of this leaf page.
func craftable(t testing.TB) (raw []byte, root, page int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plain.db")
	b, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = b.Update(func(tx *bbolt.Tx) error {
		for _, name := range []string{"meta", "volumes", "claims", "plugins", "debts"} {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		var errs []error
		for i := range 30 {
			key := fmt.Sprintf("v%02d", i)
			value := fmt.Sprintf(`{"volume":{"id":%q,"plugin_id":"p","driver":"d","external_id":"e-%s"},"node":{}}`, key, key)
			errs = append(errs, tx.Bucket([]byte("volumes")).Put([]byte(key), []byte(value)))
		}
		return errors.Join(append(errs, tx.Bucket([]byte("meta")).Put([]byte("schema"), []byte("1")))...)
	})
	if err == nil {
		err = b.View(func(tx *bbolt.Tx) error {
			root, page = int(tx.Cursor().Bucket().Root()), int(tx.Bucket([]byte("volumes")).Root())
			return nil
		})
	}
	if err = errors.Join(err, b.Close()); err != nil {
		t.Fatal(err)
	}
	if raw, err = os.ReadFile(path); err != nil || page == 0 {
		t.Fatalf("the bucket has page %d: %v", page, err)
	}
	return raw, root, page
}

// TestCrafted passes files with invalid pages to ReadBackup, Inspect and Open. All of them must
// refuse the files. The child process can allocate at most 1 GiB, so the test also checks that the
// memory use is bounded.
func TestCrafted(t *testing.T) {
	dir := t.TempDir()
	for name, tt := range crafted(t) {
		path := filepath.Join(dir, "crafted.db")
		if err := os.WriteFile(path, tt.raw, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := child(t, "crafted", path).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%.2000s", name, err, out)
			continue
		}
		for i, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
			if !strings.Contains(line, tt.says) {
				t.Errorf("%s: answer %d is %q, want %q", name, i, line, tt.says)
			}
		}
	}
}

// readCrafted limits its own memory, passes a file to each function that reads files, and prints
// the errors.
func readCrafted(args []string) error {
	const most = 1 << 30 // in bytes; bbolt maps 256 MiB for each open file
	if err := syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
		return err
	}
	raw, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	dir := filepath.Join(filepath.Dir(args[0]), "other")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	db, err := statedb.Open(filepath.Join(dir, "state.db"), statedb.Options{})
	if err != nil {
		return err
	}
	_, restored := db.ReadBackup(bytes.NewReader(raw))
	_, _, inspected := statedb.Inspect(args[0])
	_, opened := statedb.Open(args[0], statedb.Options{})
	var d *statedb.Damage
	if !errors.As(opened, &d) || !errors.Is(restored, volume.ErrInvalid) {
		return fmt.Errorf("it is opened: %w; restored: %w", opened, restored)
	}
	fmt.Printf("%q\n%q\n%q\n", restored, inspected, opened)
	return db.Close()
}

// FuzzBackup checks that ReadBackup reads or refuses a backup with any content, and uses bounded
// memory.
func FuzzBackup(f *testing.F) {
	debug.SetMemoryLimit(512 << 20)
	for _, tt := range crafted(f) {
		f.Add(tt.raw)
	}
	raw, _, _ := craftable(f)
	f.Add(raw)
	f.Add(append(bytes.Clone(raw), make([]byte, 4096)...))
	db, _ := fresh(f, statedb.Options{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) > 1<<20 {
			return
		}
		within := limited(t)
		got, err := db.ReadBackup(bytes.NewReader(raw))
		within(len(raw))
		if err != nil && !errors.Is(err, volume.ErrInvalid) && !errors.Is(err, volume.ErrRefused) {
			t.Errorf("neither invalid nor refused: %v", err)
		}
		if err == nil && len(got.Volumes()) > len(raw) {
			t.Errorf("%d volumes from %d bytes", len(got.Volumes()), len(raw))
		}
	})
}
