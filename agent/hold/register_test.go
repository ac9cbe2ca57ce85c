package hold

import (
	"context"
	"testing"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/volmgr/shared"
)

// countedStore counts the transactions.
type countedStore struct {
	shared.Store
	transactions int
	each         func() // called before each transaction, or nil
}

func (s *countedStore) Do(ctx context.Context, t shared.Txn) (shared.Result, error) {
	s.transactions++
	if s.each != nil {
		s.each()
	}
	return s.Store.Do(ctx, t)
}

// TestIdle checks that the regular check of a registration only renews the lease. A check that
// something has asked for, and one after an outage, also read the host's key.
func TestIdle(t *testing.T) {
	s, store, lease := registeredHost(t)
	for _, c := range []struct {
		name  string
		asked bool
		want  int // transactions
	}{{"idle", false, 0}, {"asked", true, 1}} {
		store.transactions = 0
		if err := s.checkRegistration(t.Context(), lease, c.asked); err != nil || store.transactions != c.want {
			t.Errorf("%s: %d transactions instead of %d, %v", c.name, store.transactions, c.want, err)
		}
	}

	s.who.Incarnation = 2
	s.compare = true
	if err := s.checkRegistration(t.Context(), lease, false); err == nil {
		t.Error("a host that the cluster does not show as registered stays registered after an outage")
	}
	if !s.compare {
		t.Error("after a check that failed, the host does not compare its holds any more")
	}
	if err := s.Store.Revoke(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	if err := s.checkRegistration(t.Context(), lease, false); err == nil {
		t.Error("a host whose lease is gone stays registered")
	}
}

// TestCompareDuringCheck checks that a change which arrives while the host reads the cluster leads to another
// comparison. The host may have read the state before the change.
func TestCompareDuringCheck(t *testing.T) {
	s, store, lease := registeredHost(t)
	s.Records, s.Reachable, s.compare = noRecords{}, func() {}, true
	store.each = s.CompareAgain
	if err := s.checkRegistration(t.Context(), lease, false); err != nil {
		t.Fatal(err)
	}
	if !s.compare {
		t.Error("the change is forgotten")
	}
}

// registeredHost returns a service whose host is registered, its store, and the lease of the host.
func registeredHost(t *testing.T) (*Service, *countedStore, shared.Lease) {
	t.Helper()
	store := &countedStore{Store: memory.New().Open("")}
	lease, err := store.Grant(t.Context(), leaseTTL)
	if err != nil {
		t.Fatal(err)
	}
	node := shared.Node{Incarnation: 1, State: shared.NodeReady}
	for _, txn := range []shared.Txn{
		shared.Found("cluster"),
		{Then: []shared.Op{shared.Put(shared.NodeKey("h1"), shared.Entry[shared.Node]{}.Encode(node))}},
	} {
		if _, err := store.Do(t.Context(), txn); err != nil {
			t.Fatal(err)
		}
	}
	s := New(Options{Store: store, Endpoints: etcd, Node: "h1", Draining: func() bool { return false }})
	s.who, s.away = shared.Asker{Node: "h1", Incarnation: 1, Era: shared.Era{Epoch: 1}}, ""
	return s, store, lease
}
