package hold

import (
	"context"
	"errors"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// racedStore lets another host remove a volume right before the first write of this host.
type racedStore struct {
	shared.Store
	raced bool
}

func (s *racedStore) Do(ctx context.Context, t shared.Txn) (shared.Result, error) {
	if len(t.If) > 0 && !s.raced {
		s.raced = true
		if _, err := s.Store.Do(ctx, shared.Txn{Then: []shared.Op{shared.Delete(shared.VolumeKey("db")), shared.Delete(shared.UseKey("db"))}}); err != nil {
			return shared.Result{}, err
		}
	}
	return s.Store.Do(ctx, t)
}

// TestUnshareTwice unshares a volume that another host unshares at the same time. Only one of them gets it.
func TestUnshareTwice(t *testing.T) {
	store := memory.New().Open("")
	v := volume.Volume{ID: "db", Driver: "d", ExternalID: "x", Shared: true}
	for _, txn := range []shared.Txn{
		shared.Found("cluster"),
		{Then: []shared.Op{
			shared.Put(shared.NodeKey("h1"), shared.Entry[shared.Node]{}.Encode(shared.Node{Incarnation: 1, State: shared.NodeReady})),
			shared.Put(shared.VolumeKey("db"), shared.Entry[shared.Definition]{}.Encode(shared.Definition{Volume: v})),
			shared.Put(shared.UseKey("db"), shared.Entry[shared.Use]{}.Encode(shared.Use{Generation: 1})),
		}},
	} {
		if _, err := store.Do(t.Context(), txn); err != nil {
			t.Fatal(err)
		}
	}
	s := New(Options{Store: &racedStore{Store: store}, Endpoints: etcd, Node: "h1", Records: noRecords{}, Events: func(...volume.Event) {}, Log: hclog.NewNullLogger()})
	s.who, s.away = shared.Asker{Node: "h1", Incarnation: 1, Era: shared.Era{Epoch: 1}}, ""
	if err := s.Definitions().Unshare(t.Context(), v, ""); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("the second host has the volume too: %v", err)
	}
}
