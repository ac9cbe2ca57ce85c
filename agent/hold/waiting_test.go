package hold

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/volmgr/shared"
)

// watchedStore tells when a watch ends.
type watchedStore struct {
	shared.Store
	ended chan struct{}
}

func (s *watchedStore) Watch(ctx context.Context, spans []shared.Span, from int64) <-chan shared.Events {
	context.AfterFunc(ctx, func() { s.ended <- struct{}{} })
	return s.Store.Watch(ctx, spans, from)
}

// TestAwaitEvent checks that the watch of a volume that waits ends after a change. (invariant I8)
func TestAwaitEvent(t *testing.T) {
	store := &watchedStore{Store: memory.New().Open(""), ended: make(chan struct{}, 1)}
	s := New(Options{Store: store, Endpoints: etcd, Node: "h1", Log: hclog.NewNullLogger()})
	if _, err := store.Do(t.Context(), shared.Txn{Then: []shared.Op{shared.Put(shared.UseKey("db"), []byte("{}"))}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s.awaitEvent(ctx, []shared.Span{{Key: shared.UseKey("db")}}, 1)
	if ctx.Err() != nil {
		t.Error("the change does not end the wait")
	}
	select {
	case <-store.ended:
	case <-time.After(10 * time.Second):
		t.Error("the watch goes on after its change")
	}
}
