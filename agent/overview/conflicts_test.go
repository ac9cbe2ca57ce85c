package overview

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// reachable is the membership of a host that reaches its cluster.
type reachable struct{}

func (reachable) Usable() error                { return nil }
func (reachable) Asker() (shared.Asker, error) { return shared.Asker{Node: "h"}, nil }

// newService returns a service whose store has the given keys.
func newService(t *testing.T, ops ...shared.Op) *Service {
	t.Helper()
	store := memory.New().Open("test")
	t.Cleanup(func() { _ = store.Close() })
	if _, err := store.Do(t.Context(), shared.Txn{Then: ops}); err != nil {
		t.Fatal(err)
	}
	return &Service{Store: store, Endpoints: func() string { return "memory" }, Node: "h", Member: reachable{}, Now: time.Now}
}

// TestTaken compares volumes of a host with the shared volume "db" on the storage "disk-1".
func TestTaken(t *testing.T) {
	def := volume.Volume{ID: "db", Driver: "d", ExternalID: "disk-1"}
	s := newService(t,
		shared.Put(shared.VolumeKey("db"), shared.Entry[shared.Definition]{}.Encode(shared.Definition{Volume: def})),
		shared.Put(shared.ExternalKey("d", "disk-1"), shared.Entry[shared.Claimed]{}.Encode(shared.Claimed{Volume: "db"})),
	)

	for name, c := range map[string]struct {
		own  volume.Volume
		want []Taken
	}{
		"nothing in common":            {volume.Volume{ID: "own", Driver: "d", ExternalID: "disk-2"}, nil},
		"the same id":                  {volume.Volume{ID: "db", Driver: "d", ExternalID: "disk-2"}, []Taken{{"db", "db", false}}},
		"the same storage":             {volume.Volume{ID: "own", Driver: "d", ExternalID: "disk-1"}, []Taken{{"own", "db", true}}},
		"storage of another driver":    {volume.Volume{ID: "own", Driver: "e", ExternalID: "disk-1"}, nil},
		"without storage":              {volume.Volume{ID: "db", Driver: "d"}, []Taken{{"db", "db", false}}},
		"the volume during its share":  {volume.Volume{ID: "db", Driver: "d", ExternalID: "disk-1"}, nil},
		"an id with special character": {volume.Volume{ID: "d/b", Driver: "d", ExternalID: "disk-2"}, nil},
	} {
		many := make([]volume.Volume, 0, conflictPage+1)
		for range conflictPage {
			many = append(many, volume.Volume{ID: "own", Driver: "d", ExternalID: "disk-9"})
		}

		got, err := s.Taken(t.Context(), append(many, c.own)) // the volume is on the second page
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}

// TestRivals compares the holds of host h with the holders that the modes of the volumes name.
func TestRivals(t *testing.T) {
	use := func(id string, u shared.Use) shared.Op {
		return shared.Put(shared.UseKey(id), shared.Entry[shared.Use]{}.Encode(u))
	}
	s := newService(t,
		use("mine", shared.Use{Access: call.SingleNodeWriter, Holder: "h"}), use("theirs", shared.Use{Access: call.SingleNodeWriter, Holder: "other"}),
		use("written", shared.Use{Access: call.MultiNodeSingleWriter, Holder: "other"}), use("all", shared.Use{Access: call.MultiNodeMultiWriter}),
	)
	got, err := s.Rivals(t.Context(), []shared.HoldView{
		{Volume: "mine", Host: "h", Access: call.SingleNodeWriter}, {Volume: "theirs", Host: "h", Access: call.SingleNodeWriter},
		{Volume: "written", Host: "h", Access: call.MultiNodeSingleWriter, Reader: true}, {Volume: "all", Host: "h", Access: call.MultiNodeMultiWriter},
		{Volume: "gone", Host: "h", Access: call.SingleNodeWriter},
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"theirs": "other"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestConflict reads a volume that two hosts use against its mode. The view says so in words.
func TestConflict(t *testing.T) {
	use := shared.Use{Access: call.SingleNodeWriter, Holder: "a", Rivals: []shared.Rival{{Host: "b", Access: call.SingleNodeWriter}}}
	s := newService(t,
		shared.Put(shared.VolumeKey("db"), shared.Entry[shared.Definition]{}.Encode(shared.Definition{Volume: volume.Volume{ID: "db"}})),
		shared.Put(shared.UseKey("db"), shared.Entry[shared.Use]{}.Encode(use)),
	)
	v, ok, err := s.Volume(t.Context(), "db")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if !strings.Contains(v.Conflict, `"a", "b"`) {
		t.Errorf("the conflict is %q", v.Conflict)
	}
}
