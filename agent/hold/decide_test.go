package hold

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// lossyStore executes the first transaction and loses its answer. Later transactions that would change
// something fail, as in an outage, except the repetition of the first one.
type lossyStore struct {
	shared.Store
	writes int
}

func (s *lossyStore) Do(ctx context.Context, t shared.Txn) (shared.Result, error) {
	if len(t.If) == 0 {
		return s.Store.Do(ctx, t)
	}

	s.writes++
	if s.writes > 2 {
		return shared.Result{}, shared.ErrUnreachable
	}
	r, err := s.Store.Do(ctx, t)
	if err == nil && s.writes == 1 {
		err = shared.ErrUnknownOutcome
	}
	return r, err
}

// noRecords are the records of a host without volumes.
type noRecords struct{ Records }

func (noRecords) Volumes() []volume.Record { return nil }

func (noRecords) Leftovers() []volume.Record { return nil }

// TestGiveUpUnknown gives up a hold, loses the answer, and then loses etcd. The outcome is unknown: the
// host must not use the hold again, because another host may have the volume.
func TestGiveUpUnknown(t *testing.T) {
	store := memory.New().Open("")
	put := func(key string, raw []byte) shared.Op { return shared.Put(key, raw) }
	held := shared.Hold{Access: call.SingleNodeWriter, Operation: "o", Incarnation: 1}
	for _, txn := range []shared.Txn{
		shared.Found("cluster"),
		{Then: []shared.Op{
			put(shared.NodeKey("h1"), shared.Entry[shared.Node]{}.Encode(shared.Node{Incarnation: 1, State: shared.NodeReady})),
			put(shared.VolumeKey("db"), shared.Entry[shared.Definition]{}.Encode(shared.Definition{Volume: volume.Volume{ID: "db"}})),
			put(shared.UseKey("db"), shared.Entry[shared.Use]{}.Encode(shared.Use{Access: call.SingleNodeWriter, Holder: "h1"})),
			put(shared.HoldKey("h1", "db"), shared.Entry[shared.Hold]{}.Encode(held)),
		}},
	} {
		if _, err := store.Do(t.Context(), txn); err != nil {
			t.Fatal(err)
		}
	}

	s := New(Options{Store: &lossyStore{Store: store}, Endpoints: etcd, Node: "h1", Records: noRecords{}, Events: func(...volume.Event) {}, Log: hclog.NewNullLogger()})
	s.who, s.away = shared.Asker{Node: "h1", Incarnation: 1, Era: shared.Era{Epoch: 1}}, ""
	r := volume.Record{Volume: volume.Volume{ID: "db", Shared: true}}
	r.Node.Hold = volume.Hold{State: volume.Failed, Operation: "o", Since: time.Now()}
	out := s.Steps().giveUp(t.Context(), r)
	if out.Err == nil || out.Unsent || out.Err.Answered {
		t.Errorf("the outcome is %+v, %v", out, out.Err)
	}
	if !s.isEnding("db", "o") {
		t.Error("the host expects its hold in the cluster again")
	}

	page, err := store.Range(t.Context(), shared.Span{Key: shared.HoldKey("h1", "db")}, 1, 0)
	if err != nil || len(page.KVs) != 0 {
		t.Errorf("the cluster shows %v, %v", page.KVs, err)
	}
}
