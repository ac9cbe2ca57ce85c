package volume_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// settledClaim returns a mounted claim that has all its sides.
func settledClaim(alloc string, seq uint64) volume.Claim {
	return volume.Claim{
		Alloc: alloc, Seq: seq, Wanted: true, State: volume.Mounted,
		Published: volume.Present, Target: "/t/" + alloc, Mount: mountID(1000 + seq),
	}
}

// crowd adds three settled claims whose mounts are in place. One of them is older than all other
// claims of the record, and two are newer.
func crowd(r volume.Record, o volume.Observed) (volume.Record, volume.Observed) {
	r.Claims, o.Targets = maps.Clone(r.Claims), maps.Clone(o.Targets)
	if r.Claims == nil {
		r.Claims = map[string]volume.Claim{}
	}
	if o.Targets == nil {
		o.Targets = map[string]volume.Sight{}
	}
	for i, seq := range []uint64{0, 998, 999} {
		c := settledClaim(fmt.Sprintf("settled-%d", i), seq)
		r.Claims[c.Alloc] = c
		o.Targets[c.Alloc] = volume.Sight{Seen: volume.SeenMount, Identity: *c.Mount}
	}
	return r, o
}

// misled checks that Next chooses the same step for a record and for the result of FocusRecord. It
// describes the difference, or returns "" if both steps are the same.
func misled(r volume.Record, o volume.Observed) string {
	r, o = crowd(r, o)
	focus, narrow := volume.FocusRecord(r, nil)
	if !narrow || !volume.FocusIsValid(focus, o, nil) || len(volume.MisplacedClaims(r, o)) > 0 {
		return "" // FocusRecord does not promise the same step in these cases
	}
	if len(focus.Claims) >= len(r.Claims) {
		return "the focus holds all settled claims"
	}
	all, few := volume.Next(r, o), volume.Next(focus, seen(volume.PathsToObserve(focus), o))
	if all != few {
		return fmt.Sprintf("the whole record leads to %+v, its focus to %+v", all, few)
	}
	return ""
}

// TestFocus checks which claims FocusRecord keeps, and when it returns the whole record.
func TestFocus(t *testing.T) {
	base := mounted(t)
	r, o := crowd(base, volume.Observed{
		Boot: "b", Staging: volume.Sight{Seen: volume.SeenMount, Identity: *base.Node.Mount},
		Targets: map[string]volume.Sight{"a": {Seen: volume.SeenMount, Identity: *base.Claims["a"].Mount}},
	})
	focus, narrow := volume.FocusRecord(r, nil)
	if len(focus.Claims) != 1 || !narrow {
		t.Errorf("of four settled claims the focus is %v", focus.Claims)
	}
	if focus, _ = volume.FocusRecord(r, map[string]bool{"settled-1": true}); len(focus.Claims) != 2 {
		t.Errorf("with a misplaced claim the focus is %v", focus.Claims)
	}
	for name, change := range map[string]func(*volume.Record){
		"staging unknown": func(r *volume.Record) { r.Node.Staged = volume.Unknown },
		"attach failed":   func(r *volume.Record) { r.Node.Attached = volume.Failed },
		"a watch":         func(r *volume.Record) { r.Node.Watches = []volume.Watch{{Path: "/t/a", Alloc: "a"}} },
		"a pending call": func(r *volume.Record) {
			r.Node.PendingCalls = []volume.PendingCall{{Kind: call.NodeUnpublish, Path: "/t/x"}}
		},
		"a debt": func(r *volume.Record) { r.Leftover = true },
	} {
		changed := r
		change(&changed)
		if _, narrow := volume.FocusRecord(changed, nil); narrow {
			t.Errorf("%s: the record is looked at in part", name)
		}
	}
	dead := o
	dead.Staging.Seen = volume.SeenDead
	gone := o
	gone.Targets = map[string]volume.Sight{}
	for name, o := range map[string]volume.Observed{"the staging is dead": dead, "no mount is in place": gone} {
		if focus, _ := volume.FocusRecord(r, nil); volume.FocusIsValid(focus, o, nil) {
			t.Errorf("%s: a part of the record stands for the whole", name)
		}
	}
}
