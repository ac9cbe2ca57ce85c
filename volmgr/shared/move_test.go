package shared

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// moving returns the keys of volume "db", which host "a" holds. Host "m" decides about a move to "b". The
// function change prepares a case.
func moving(change func(m *Moving)) Moving {
	ready := Node{Incarnation: 3, State: NodeReady}
	m := Moving{
		Situation: Situation{
			id: "db", Meta: stored(MetaKey, Meta{Schema: Schema}), Node: stored(NodeKey("m"), ready),
			Volume: stored(VolumeKey("db"), Definition{Volume: volume.Volume{ID: "db", Provision: volume.Provisioned}}),
			Use:    stored(UseKey("db"), Use{Access: call.SingleNodeWriter, Holder: "a"}),
			Hold:   Entry[Hold]{KV: KV{Key: HoldKey("m", "db")}}, Call: Entry[Call]{KV: KV{Key: CallKey("db")}}, Move: Entry[Move]{KV: KV{Key: MoveKey("db")}},
		},
		Source: stored(NodeKey("a"), ready), SourceLive: stored(LiveKey("a"), Live{}),
		Target: stored(NodeKey("b"), ready), TargetLive: stored(LiveKey("b"), Live{}), from: "a", to: "b",
	}
	if change != nil {
		change(&m)
	}
	return m
}

// ordered sets a move in a state.
func ordered(state MoveState) func(*Moving) {
	return func(m *Moving) {
		m.Move = stored(MoveKey("db"), Move{ID: "1", By: "m", From: "a", To: "b", State: state, Within: time.Minute})
		m.Move.Lease = 11
	}
}

// mover is the host that decides in these tests.
var mover = Asker{Node: "m", Incarnation: 3}

// TestBeginMove orders a move in each situation that forbids it. Each refusal names its reason.
func TestBeginMove(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(m *Moving)
		kind   error
		words  string
	}{
		{"possible", nil, nil, ""},
		{"draining source", func(m *Moving) { m.Source.Value.State = NodeDraining }, nil, ""},
		{"again", func(m *Moving) { ordered(MoveAsked)(m); m.Move.Value.ID = "2" }, volume.ErrRefused, `is being moved to host "b"`},
		{"no volume", func(m *Moving) { m.Volume = Entry[Definition]{} }, volume.ErrNotFound, `no volume "db"`},
		{"deleting", func(m *Moving) { m.Volume.Value.Deleting = true }, volume.ErrRefused, "being deleted"},
		{"suspended", func(m *Moving) { m.Meta.Value.Suspended = "restored" }, volume.ErrRefused, "etcd was restored"},
		{"conflict", func(m *Moving) { m.Use.Value.Rivals = []Rival{{Host: "c"}} }, volume.ErrRefused, `"c"`},
		{"free", func(m *Moving) { m.Use.Value = Use{} }, volume.ErrRefused, "no host uses"},
		{"several hosts", func(m *Moving) { m.Use.Value = Use{Access: call.MultiNodeMultiWriter} }, volume.ErrRefused, "permits several hosts"},
		{"there already", func(m *Moving) { m.to = "a" }, volume.ErrRefused, "holds volume \"db\" already"},
		{"unknown target", func(m *Moving) { m.Target = Entry[Node]{} }, volume.ErrNotFound, `no host "b"`},
		{"draining target", func(m *Moving) { m.Target.Value.State = NodeDraining }, volume.ErrRefused, "is draining"},
		{"dead target", func(m *Moving) { m.TargetLive = Entry[Live]{} }, volume.ErrRefused, `"b" is gone`},
		{"away target", func(m *Moving) {
			m.TargetLive, m.Target.Value.State, m.Target.Value.Until = Entry[Live]{}, NodeAway, time.Unix(99, 0)
		}, volume.ErrRefused, `"b" is away`},
		{"fenced target", func(m *Moving) { m.Target.Value.State = NodeFenced }, volume.ErrRefused, "is fenced"},
		{"dead source", func(m *Moving) { m.SourceLive = Entry[Live]{} }, volume.ErrRefused, "only its agent can give the volume up"},
		{"fencing source", func(m *Moving) { m.Source.Value.State = NodeFencing }, volume.ErrRefused, "is fencing"},
		{"unregistered", func(m *Moving) { m.Node.Value.Incarnation = 4 }, ErrUnregistered, "registered again"},
	} {
		txn, err := moving(tt.change).Begin(mover, Move{ID: "1", Since: time.Unix(9, 0)}, 7)
		if tt.kind == nil {
			if err != nil || len(txn.Then) != 1 || txn.Then[0].Lease != 7 || len(txn.If) < 9 {
				t.Errorf("%s: %+v, %v", tt.name, txn, err)
			}
			continue
		}
		if len(txn.Then) != 0 || !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%s: %+v, %v", tt.name, txn, err)
		}
	}

	var dead *volume.Error
	_, err := moving(func(m *Moving) { m.SourceLive = Entry[Live]{} }).Begin(mover, Move{ID: "1"}, 7)
	if !errors.As(err, &dead) || !dead.Remedy.Equal(remedy.Of(remedy.ReturnOrReplace, "a")) {
		t.Errorf("a dead source: %v", err)
	}
	if txn, err := moving(ordered(MoveAsked)).Begin(mover, Move{ID: "1"}, 7); len(txn.Then) != 0 || err != nil {
		t.Errorf("the same order after a lost answer: %+v, %v", txn, err)
	}
}

// TestAnswerMove answers and ends a move in each of its states. The key of an accepted move has the lease of
// the target, and other writes keep its lease.
func TestAnswerMove(t *testing.T) {
	free := func(m *Moving) { ordered(MoveAsked)(m); m.Use.Value = Use{} }
	taken := func(m *Moving) { ordered(MoveAsked)(m); m.Use.Value.Holder = "c" }
	draining := func(m *Moving) { ordered(MoveAsked)(m); m.Node.Value.State = NodeDraining }
	remains := []MoveRemains{{Alloc: "web", Reason: "pid 7"}}
	accept := func(m Moving) (Txn, error) { return m.Accept(mover, "1", true, 22) }
	decline := func(m Moving) (Txn, error) { return m.Decline(mover, "1", "full", remedy.Remedy{}) }
	report := func(m Moving) (Txn, error) { return m.Report(mover, "1", remains) }
	for _, tt := range []struct {
		name   string
		change func(m *Moving)
		by     func(m Moving) (Txn, error)
		lease  Lease // 0 if the step is refused
	}{
		{"accept", ordered(MoveAsked), accept, 22},
		{"accept a free volume", free, accept, 22},
		{"accept the volume of a third host", taken, accept, 0},
		{"accept while draining", draining, accept, 0},
		{"accept twice", ordered(MoveAccepted), accept, 0},
		{"accept without an order", nil, accept, 0},
		{"decline", ordered(MoveAsked), decline, 11},
		{"decline after the acceptance", ordered(MoveAccepted), decline, 0},
		{"report", ordered(MoveAccepted), report, 11},
		{"report before the acceptance", ordered(MoveAsked), report, 0},
	} {
		txn, err := tt.by(moving(tt.change))
		if tt.lease == 0 {
			if !errors.Is(err, ErrMoveOver) {
				t.Errorf("%s: %+v, %v", tt.name, txn, err)
			}
			continue
		}
		if err != nil || len(txn.Then) != 1 || txn.Then[0].Lease != tt.lease {
			t.Errorf("%s: %+v, %v", tt.name, txn, err)
		}
	}

	told := moving(ordered(MoveAccepted))
	told.Move.Value.Remains = remains
	if txn, err := told.Report(mover, "1", remains); len(txn.Then) != 0 || err != nil {
		t.Errorf("the same report: %+v, %v", txn, err)
	}
	if txn, err := told.End(mover, "2"); len(txn.Then) != 0 || err != nil {
		t.Errorf("the end of another move: %+v, %v", txn, err)
	}
	if txn, err := told.End(mover, "1"); len(txn.Then) != 1 || txn.Then[0].Kind != OpDelete || err != nil {
		t.Errorf("the end: %+v, %v", txn, err)
	}
}

// TestReserved asks for a hold on a free volume while a move has reserved it. Only the target gets it, and
// ends the move by that. Every admission compares the key of the move.
func TestReserved(t *testing.T) {
	for _, tt := range []struct {
		name   string
		state  MoveState // empty without a move
		to     string
		access call.AccessMode
		reader bool
		held   bool // the host must wait
		ends   bool // the admission ends the move
	}{
		{"no move", "", "b", call.SingleNodeWriter, false, false, false},
		{"target", MoveAccepted, "m", call.SingleNodeWriter, false, false, true},
		{"target before its answer", MoveAsked, "m", call.SingleNodeWriter, false, false, true},
		{"other host", MoveAccepted, "b", call.SingleNodeWriter, false, true, false},
		{"other host before the answer", MoveAsked, "b", call.SingleNodeWriter, false, false, false},
		{"other writer", MoveAccepted, "b", call.MultiNodeSingleWriter, false, true, false},
		{"reader", MoveAccepted, "b", call.MultiNodeSingleWriter, true, false, false},
		{"declined", MoveDeclined, "b", call.SingleNodeWriter, false, false, false},
	} {
		m := moving(func(m *Moving) {
			m.Use.Value = Use{}
			if tt.state != "" {
				ordered(tt.state)(m)
				m.Move.Value.To = tt.to
			}
		})
		txn, err := m.Admit(Ask{Asker: mover, Operation: "op", Access: tt.access, Reader: tt.reader, Now: time.Unix(9, 0)})
		var held *volume.CallError
		if errors.As(err, &held) != tt.held || err == nil == tt.held {
			t.Errorf("%s: %v", tt.name, err)
		}

		ends, compares := false, false
		for _, op := range txn.Then {
			ends = ends || op.Kind == OpDelete && op.Key == MoveKey("db")
		}
		for _, c := range txn.If {
			compares = compares || c.Key == MoveKey("db")
		}
		if ends != tt.ends || compares == tt.held {
			t.Errorf("%s: the admission ends the move: %t; compares it: %t", tt.name, ends, compares)
		}
	}
}

// TestMoveWords describes a move in each state.
func TestMoveWords(t *testing.T) {
	order := Move{From: "a", To: "b", Reason: "it is full", Within: time.Minute}
	remains := []MoveRemains{{Alloc: "web", Reason: "pid 7"}, {Reason: "a mount"}}
	for _, tt := range []struct {
		state   MoveState
		holder  string
		remains []MoveRemains
		words   string
	}{
		{MoveAsked, "a", nil, `host "b" is asked to take it`},
		{MoveDeclined, "a", nil, `host "b" refuses it: it is full`},
		{MoveAccepted, "a", nil, `moving to host "b"; host "a" gives it up`},
		{MoveAccepted, "a", remains, `moving to host "b"; host "a" still has the claim of "web" (pid 7), a mount`},
		{MoveAccepted, "", nil, `reserved for host "b"`},
	} {
		order.State, order.Remains = tt.state, tt.remains
		if got := order.Words(tt.holder); got != tt.words {
			t.Errorf("%s: %s", tt.state, got)
		}
	}

	order.Remains = remains
	if err := order.Late("db"); !errors.Is(err, volume.ErrTimeout) || !strings.Contains(err.Error(), `it has the claim of "web" (pid 7), a mount`) {
		t.Error(err)
	}
}
