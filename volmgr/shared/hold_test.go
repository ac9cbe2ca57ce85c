package shared

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestConfirm checks after which calls a host records its attachment. After a detach of its own, which an
// older record of the host does not show, the host attaches the volume again.
func TestConfirm(t *testing.T) {
	who := Asker{Node: "a", Incarnation: 5, Era: Era{Epoch: 1}}
	own := Call{Executor: "a", Target: "a", Incarnation: 4, Call: call.ControllerPublish}
	detach, taken := own, own
	detach.Call = call.ControllerUnpublish
	taken.Executor, taken.Taken = "b", true
	for name, c := range map[string]struct {
		call       *Call
		attachment Attachment
		want       string
	}{
		"its own attach":     {&own, Attaching, "confirmed"},
		"confirmed before":   {nil, Attached, "nothing"},
		"its own detach":     {&detach, Detaching, "attached again"},
		"a taken call":       {&taken, Attaching, "attached again"},
		"a taken call ended": {nil, Unclear, "attached again"},
	} {
		sit := lostVolume(fenceOf(NodeReady, "")).Situation
		sit.Hold.Value.Attachment = c.attachment
		if c.call != nil {
			sit.Call = stored(CallKey("db"), *c.call)
		}
		got := "confirmed"
		txn, err := sit.Confirm(who, "op")
		var held *volume.CallError
		switch {
		case errors.As(err, &held) && held.Code == volume.CodeHeld:
			got = "attached again"
		case err != nil:
			got = err.Error()
		case len(txn.Then) == 0:
			got = "nothing"
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestGiveUp checks the end of a hold while controller calls are in flight. The host ends its own call with the
// hold, and waits for the call of another host for its attachment. If it has no such hold, the transaction only
// raises the generation, so that a late admission fails.
func TestGiveUp(t *testing.T) {
	own := Call{Executor: "a", Target: "a", Incarnation: 5, Call: call.ControllerUnpublish}
	lent, expand := own, own
	lent.Executor = "b"
	expand.Executor, expand.Target, expand.Call = "b", "", call.ControllerExpand
	for name, c := range map[string]struct {
		operation string
		call      *Call
		change    func(*Situation)
		want      string // the operations; empty for a refusal
		compared  string // a key
	}{
		"held":                       {"op", nil, nil, "+use/db -holds/a/db -users/db/a", HoldKey("a", "db")},
		"held, with its own call":    {"op", &own, nil, "+use/db -calls/db -holds/a/db -users/db/a", CallKey("db")},
		"held, with another's call":  {"op", &lent, nil, "", ""},
		"held, with an expansion":    {"op", &expand, nil, "+use/db -holds/a/db -users/db/a", HoldKey("a", "db")},
		"another hold":               {"late", nil, nil, "+use/db", UseKey("db")},
		"another hold, with a call":  {"late", &own, nil, "+use/db -calls/db", CallKey("db")},
		"another hold, with another": {"late", &lent, nil, "", ""},
		"no hold": {"op", nil, func(s *Situation) {
			s.Hold, s.Use.Value = Entry[Hold]{KV: KV{Key: HoldKey("a", "db")}}, Use{Generation: 1}
		}, "+use/db", HoldKey("a", "db")},
		"one of two users": {"op", nil, func(s *Situation) {
			s.Use.Value = Use{Access: call.MultiNodeMultiWriter}
			s.Users = []Entry[User]{stored(UserKey("db", "a"), User{}), stored(UserKey("db", "b"), User{})}
		}, "-holds/a/db -users/db/a", UserKey("db", "b")},
		"the last user": {"op", nil, func(s *Situation) {
			s.Use.Value = Use{Access: call.MultiNodeMultiWriter}
			s.Users = []Entry[User]{stored(UserKey("db", "a"), User{})}
		}, "+use/db -holds/a/db -users/db/a", Users("db").Key},
	} {
		s := lostVolume(fenceOf(NodeReady, "")).Situation
		if c.call != nil {
			s.Call = stored(CallKey("db"), *c.call)
		}
		if c.change != nil {
			c.change(&s)
		}
		txn, err := s.GiveUp(Asker{Node: "a", Incarnation: 5, Era: Era{Epoch: 1}}, c.operation, time.Unix(9, 0))
		if got := strings.Join(keysOf(txn), " "); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: got %q, %v\nwant %q", name, got, err, c.want)
		}
		if err != nil {
			continue
		}
		for _, key := range []string{MetaKey, NodeKey("a"), UseKey("db"), c.compared} {
			if !compares(txn, key) {
				t.Errorf("%s: the transaction does not compare %s", name, key)
			}
		}
	}
}

// TestEndOldCall checks which announced calls a host ends while a restore of the store prevents it from using its
// hold.
func TestEndOldCall(t *testing.T) {
	begun := time.Unix(1000, 0)
	own := Call{Executor: "b", Target: "b", Call: call.ControllerPublish, Since: begun, Deadline: time.Minute}
	other, taken := own, own
	other.Executor, taken.Taken = "c", true
	for name, c := range map[string]struct {
		call  Call
		after time.Duration
		ends  bool
	}{
		"of an earlier agent":     {own, 2 * time.Minute, true},
		"it may be in flight":     {own, time.Minute, false},
		"of another host":         {other, 2 * time.Minute, false},
		"of a cleaning":           {taken, 2 * time.Minute, false},
		"from a clock that leapt": {own, -time.Hour, false},
	} {
		s := Situation{
			id: "db", Meta: stored(MetaKey, Meta{Schema: Schema, Epoch: 1, Suspended: "restored"}), Node: stored(NodeKey("b"), Node{Incarnation: 3, State: NodeReady}),
			Hold: stored(HoldKey("b", "db"), Hold{Operation: "op", Attachment: Detaching}), Call: stored(CallKey("db"), c.call),
		}
		txn, err := s.EndOldCall(fencer, "op", begun.Add(c.after))
		if err != nil || len(txn.Then) > 0 != c.ends {
			t.Errorf("%s: %+v, %v", name, txn, err)
		}
		if !c.ends {
			continue
		}
		after, err := s.After(txn, 20)
		if h := after.Hold.Value; err != nil || after.Call.Exists() || h.Attachment != Unclear {
			t.Errorf("%s: the hold becomes %+v, the call %+v, %v", name, h, after.Call.Value, err)
		}
	}
}

// TestMayBeAttached checks whether a host detaches a volume before it gives its hold up, although its record shows no
// attachment. A record from an older snapshot of the disk does not show the call of the agent that got the hold.
func TestMayBeAttached(t *testing.T) {
	for _, c := range []struct {
		attachment  Attachment
		incarnation uint64
		want        bool
	}{
		{"", 2, false},
		{Attached, 3, true}, {Attached, 2, true},
		{Attaching, 3, false}, {Attaching, 2, true},
		{Detaching, 2, false}, {Unclear, 2, false}, // the host has detached the volume, or detaches it again
	} {
		h := Hold{Attachment: c.attachment, Incarnation: c.incarnation}
		if got := h.MayBeAttached(Asker{Node: "a", Incarnation: 3}); got != c.want {
			t.Errorf("attachment %q of incarnation %d: %t", c.attachment, c.incarnation, got)
		}
	}
}

// TestEndLateDetach checks which announced calls a host ends that it has not made.
func TestEndLateDetach(t *testing.T) {
	for name, c := range map[string]struct {
		call Call
		ends bool
	}{
		"own detach":            {Call{Executor: "b", Target: "b", Call: call.ControllerUnpublish}, true},
		"own attach":            {Call{Executor: "b", Target: "b", Call: call.ControllerPublish}, false},
		"detach by a cleaning":  {Call{Executor: "b", Target: "b", Call: call.ControllerUnpublish, Taken: true}, false},
		"detach by an executor": {Call{Executor: "c", Target: "b", Call: call.ControllerUnpublish}, false},
	} {
		s := Situation{
			id: "db", Meta: stored(MetaKey, Meta{Schema: Schema, Epoch: 1}), Node: stored(NodeKey("b"), Node{Incarnation: 3, State: NodeReady}),
			Hold: stored(HoldKey("b", "db"), Hold{Operation: "op", Attachment: Detaching}), Call: stored(CallKey("db"), c.call),
		}
		txn, err := s.EndLateDetach(fencer, "op")
		if err != nil || len(txn.Then) > 0 != c.ends {
			t.Errorf("%s: %+v, %v", name, txn, err)
		}
		if !c.ends {
			continue
		}
		after, err := s.After(txn, 20)
		if h := after.Hold.Value; err != nil || after.Call.Exists() || h.Attachment != Unclear || h.By != "b" {
			t.Errorf("%s: the hold becomes %+v, the call %+v, %v", name, h, after.Call.Value, err)
		}
		if _, err := s.EndLateDetach(fencer, "another"); !errors.Is(err, ErrHoldLost) {
			t.Errorf("%s: a hold of another operation: %v", name, err)
		}
	}
}
