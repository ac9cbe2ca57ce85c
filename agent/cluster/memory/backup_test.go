package memory_test

import (
	"errors"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestRestore restores a backup. The keys and leases of the backup are back, later ones are gone, and a watch from
// before learns that its revisions are gone.
func TestRestore(t *testing.T) {
	ctx := t.Context()
	server := memory.New()
	store := server.Open("/c/")
	write := func(ops ...shared.Op) int64 {
		t.Helper()
		res, err := store.Do(ctx, shared.Txn{Then: ops})
		if err != nil {
			t.Fatal(err)
		}
		return res.Revision
	}
	kept, err := store.Grant(ctx, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	first := write(shared.Put("a", []byte("1")), shared.PutLeased("leased", []byte("1"), kept))
	backup := server.Backup()

	lost, err := store.Grant(ctx, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	last := write(shared.Put("a", []byte("2")), shared.PutLeased("b", []byte("2"), lost))
	watch := store.Watch(ctx, []shared.Span{{Key: "a"}}, last+1)
	server.Restore(backup)
	if events := <-watch; !errors.Is(events.Err, shared.ErrCompacted) {
		t.Errorf("the watch from before the restore: %+v", events)
	}

	read := func(key string) (kv shared.KV, ok bool) {
		t.Helper()
		page, err := store.Range(ctx, shared.Span{Key: key}, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.KVs) == 0 {
			return kv, false
		}
		return page.KVs[0], true
	}
	if a, _ := read("a"); string(a.Value) != "1" || a.Mod != first {
		t.Errorf("the key of the backup is %+v, want revision %d", a, first)
	}
	if _, ok := read("b"); ok {
		t.Error("a later key is still there")
	}
	if _, _, err := store.Renew(ctx, lost); !errors.Is(err, shared.ErrLeaseGone) {
		t.Errorf("a later lease: %v", err)
	}
	if now := write(shared.Put("c", nil)); now <= last {
		t.Errorf("the next revision is %d, and %d was before the restore", now, last)
	}
	server.Advance(10 * time.Second)
	if _, ok := read("leased"); ok {
		t.Error("the key outlives its lease")
	}
}
