package shared

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestCheckAge compares a host's memory with a store.
func TestCheckAge(t *testing.T) {
	had := Membership{ClusterID: "c", Era: Era{5, "x"}, Incarnation: 3, Revision: 20, StoreID: "s"}
	for _, c := range []struct {
		name         string
		meta         Meta
		incarnation  uint64
		revision     int64
		store, words string
	}{
		{name: "the same state", meta: Meta{Epoch: 5, EpochTail: "x"}, incarnation: 3, revision: 20, store: "s"},
		{name: "an older epoch", meta: Meta{Epoch: 4}, incarnation: 3, revision: 30, store: "s", words: "its epoch is 4"},
		{name: "another restore", meta: Meta{Epoch: 5, EpochTail: "y"}, incarnation: 3, revision: 30, store: "s", words: "another restore"},
		{name: "an unknown host", meta: Meta{Epoch: 5, EpochTail: "x"}, revision: 30, store: "s", words: `does not know host "a"`},
		{name: "an older incarnation", meta: Meta{Epoch: 5, EpochTail: "x"}, incarnation: 2, revision: 30, store: "s", words: "incarnation 2"},
		{name: "an older revision", meta: Meta{Epoch: 5, EpochTail: "x"}, incarnation: 3, revision: 19, store: "s", words: "revision is 19"},
		{name: "another store", meta: Meta{Epoch: 5, EpochTail: "x"}, incarnation: 3, revision: 30, store: "t", words: "cluster t of etcd"},
		{name: "a new epoch", meta: Meta{Epoch: 6}, incarnation: 1, revision: 1, store: "t"},
	} {
		a := Arrival{Meta: stored(MetaKey, c.meta), Revision: c.revision}
		if c.incarnation > 0 {
			a.Node = stored(NodeKey("a"), Node{Incarnation: c.incarnation})
		}
		err := a.CheckAge(Self{Node: "a", Member: had, StoreID: c.store})
		if (err == nil) != (c.words == "") || err != nil && (!errors.Is(err, ErrWentBack) || !strings.Contains(err.Error(), c.words)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestRivals lets three hosts write their holds on one volume after a restore. The first one becomes
// the holder. When it leaves, the next one does.
func TestRivals(t *testing.T) {
	rival := func(host string) Rival { return Rival{Host: host, Access: call.SingleNodeWriter} }
	use, _ := Use{}.join("db", rival("a"))
	use, _ = use.join("db", rival("b"))
	use, ops := use.join("db", Rival{Host: "c", Access: call.MultiNodeMultiWriter})
	if use.Holder != "a" || len(use.Rivals) != 2 || len(ops) > 0 {
		t.Fatalf("three hosts: %+v", use)
	}
	if words := ConflictWords("db", use, nil); !strings.Contains(words, `"a", "b", "c"`) {
		t.Errorf("the conflict: %s", words)
	}

	use, _, _ = leave("db", use, nil, "a")
	if use.Holder != "b" || len(use.Rivals) != 1 {
		t.Errorf("after host a has left: %+v", use)
	}
	use, ops, _ = leave("db", use, nil, "b")
	if use.Holder != "" || use.Access != call.MultiNodeMultiWriter || use.Rivals != nil || len(ops) != 1 || ops[0].Key != UserKey("db", "c") {
		t.Errorf("after host b has left: %+v, %v", use, ops)
	}
}

// TestSuspended admits no writer of a single-writer mode after a restore, not even under a hold that
// the store shows. Modes for several hosts are still admitted.
func TestSuspended(t *testing.T) {
	who := Asker{Node: "a", Incarnation: 1, Era: Era{Epoch: 7}}
	s := Situation{
		Meta: stored(MetaKey, Meta{Schema: 1, Epoch: 7, Suspended: "restored"}), Node: stored(NodeKey("a"), Node{Incarnation: 1, State: NodeReady}),
		Volume: stored(VolumeKey("db"), Definition{Volume: volume.Volume{ID: "db"}}), Use: stored(UseKey("db"), Use{}), id: "db",
	}
	for _, c := range []struct {
		access call.AccessMode
		reader bool
		waits  bool
	}{
		{call.SingleNodeWriter, false, true},
		{call.MultiNodeSingleWriter, false, true},
		{call.MultiNodeSingleWriter, true, false},
		{call.MultiNodeMultiWriter, false, false},
	} {
		ask := Ask{Asker: who, Operation: "o", Access: c.access, Reader: c.reader}
		if _, err := s.Admit(ask); (err != nil) != c.waits {
			t.Errorf("admit in mode %s: %v", c.access, err)
		}
		if err := s.CheckVerified(ask); (err != nil) != c.waits {
			t.Errorf("verify in mode %s: %v", c.access, err)
		}
	}
	ask := Ask{Asker: who, Operation: "o", Access: call.MultiNodeMultiWriter}
	s.Use.Value.Access = call.MultiNodeMultiWriter // the mode may have changed since the backup
	for _, mode := range []call.AccessMode{call.SingleNodeWriter, call.MultiNodeMultiWriter} {
		s.Volume.Value.Volume.Capabilities = append(s.Volume.Value.Volume.Capabilities, call.Capability{Access: mode})
		several := len(s.Volume.Value.Volume.Capabilities) > 1
		if _, err := s.Admit(ask); (err != nil) != several {
			t.Errorf("a further hold on a volume with several modes (%t): %v", several, err)
		}
		if err := s.CheckVerified(ask); (err != nil) != several {
			t.Errorf("verify a hold on a volume with several modes (%t): %v", several, err)
		}
	}
	s.Meta.Value.Suspended, s.Use.Value.Rivals = "", []Rival{{Host: "b", Access: call.SingleNodeWriter}}
	if err := s.CheckVerified(ask); err == nil {
		t.Error("a host uses a hold again, although another host uses the volume against its mode")
	}
	who.Era.Epoch--
	if _, err := s.Admit(Ask{Asker: who, Access: call.MultiNodeMultiWriter}); !errors.Is(err, ErrUnregistered) {
		t.Errorf("a host of the earlier epoch: %v", err)
	}
}

// TestAloneAfterRestore checks that a host does not begin to use a volume again, under a hold that the store shows,
// while another host may use the volume since a restore. The host may be the holder, and the other one its rival.
func TestAloneAfterRestore(t *testing.T) {
	for name, c := range map[string]struct {
		access  call.AccessMode
		change  func(*Situation)
		refused bool
	}{
		"the only host":            {call.SingleNodeWriter, func(*Situation) {}, false},
		"suspended":                {call.SingleNodeWriter, func(s *Situation) { s.Meta.Value.Suspended = "restored" }, true},
		"suspended, several hosts": {call.MultiNodeMultiWriter, func(s *Situation) { s.Meta.Value.Suspended = "restored" }, false},
		"a rival": {call.SingleNodeWriter, func(s *Situation) {
			s.Use.Value.Rivals = []Rival{{Host: "b", Access: call.SingleNodeWriter}}
		}, true},
	} {
		s := lostVolume(fenceOf(NodeReady, "")).Situation
		s.Hold.Value.Access, s.Use.Value.Access = c.access, c.access
		c.change(&s)
		who := Asker{Node: "a", Incarnation: 5, Era: Era{Epoch: 1}}
		if err := s.CheckVerified(Ask{Asker: who, Operation: "op", Access: c.access}); (err != nil) != c.refused {
			t.Errorf("%s: verify: %v", name, err)
		}
		for method, refused := range map[call.Method]bool{call.ControllerPublish: c.refused, call.ControllerUnpublish: false} {
			_, err := s.BeginAttachmentCall(AnnouncedCall{Asker: who, Operation: "op", Call: method, Target: "a", NodeID: "id-a"})
			if (err != nil) != refused {
				t.Errorf("%s: %s: %v", name, method, err)
			}
		}
	}
}

// TestMissing names the hosts that have not registered in an epoch. A proof counts only for the whole host,
// and only in its own epoch.
func TestMissing(t *testing.T) {
	old, now := Era{Epoch: 1}, Era{2, "x"}
	missing := Missing(Meta{Epoch: 2, EpochTail: "x"}, map[string]Node{
		"here": {Registration: "r", Era: now}, "silent": {Registration: "r", Era: old, State: NodeAway},
		"off":      {Registration: "r", Era: old, State: NodeFenced, Fencing: &Fencing{Era: now, Proven: ProvenPerson}},
		"was off":  {Registration: "r", Era: old, State: NodeFenced, Fencing: &Fencing{Era: old, Proven: ProvenPerson}},
		"detached": {Registration: "r", Era: old, State: NodeFenced, Fencing: &Fencing{Era: now}},
		"replaced": {Era: old}, "other": {Registration: "r", Era: Era{2, "y"}},
	})
	if !slices.Equal(missing, []string{"detached", "other", "silent", "was off"}) {
		t.Errorf("missing are %q", missing)
	}
}

// TestSuspend writes the suspension only once.
func TestSuspend(t *testing.T) {
	a := Arrival{Meta: stored(MetaKey, Meta{Schema: 1, Epoch: 7})}
	txn := a.Suspend("a", time.Unix(9, 0))
	if len(txn.Then) != 1 || !strings.Contains(string(txn.Then[0].Value), `"went_back":"a"`) {
		t.Errorf("the first host: %+v", txn)
	}
	a.Meta = stored(MetaKey, Meta{Schema: 1, Epoch: 7, Suspended: "x", WentBack: "b"})
	if txn := a.Suspend("a", time.Unix(9, 0)); len(txn.Then) > 0 {
		t.Errorf("the second host: %+v", txn)
	}
}
