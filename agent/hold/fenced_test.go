package hold

import (
	"slices"
	"testing"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// lostRecords are the records of a host with the lost volume "db", which is still mounted there.
type lostRecords struct{ noRecords }

func (lostRecords) Volumes() []volume.Record {
	return []volume.Record{
		{Volume: volume.Volume{ID: "db", Shared: true}, Node: volume.NodeSide{Staged: volume.Present, Hold: volume.Hold{Lost: true}}},
		{Volume: volume.Volume{ID: "kept", Shared: true}, Node: volume.NodeSide{Staged: volume.Present}},
	}
}

// TestQuarantineIsTried checks that each regular check of the registration tries to unmount the volumes in
// quarantine, so that the quarantine ends soon after their last user.
func TestQuarantineIsTried(t *testing.T) {
	var woken []string
	s := New(Options{Endpoints: etcd, Node: "h1", Records: lostRecords{}, Wake: func(id string) { woken = append(woken, id) }})
	a := shared.Arrival{Node: shared.Entry[shared.Node]{Value: shared.Node{Quarantined: []string{"db"}}}}
	for range 2 {
		if err := s.compareQuarantine(t.Context(), a, shared.Asker{Node: "h1"}); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(woken, []string{"db", "db"}) {
		t.Errorf("these volumes were tried: %q", woken)
	}
}
