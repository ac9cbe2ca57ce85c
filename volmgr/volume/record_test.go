package volume_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// mountID returns a mount that differs from other mounts only in its id.
func mountID(id uint64) *volume.MountIdentity {
	return &volume.MountIdentity{Namespace: 1, Boot: "b", Device: "8:1", Root: "/", FSType: "ext4", ID: id}
}

// mounted returns a volume with one claim that has all its sides.
func mounted(t *testing.T) volume.Record {
	t.Helper()
	r := offering(call.SingleNodeMultiWriter)
	info := plugin.Info{NodeID: "n", Caps: plugin.Caps{Attach: true, Stage: true}}
	r, err := volume.Admit(r, writer("a"), info, now)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		a   volume.Action
		out volume.Outcome
	}{
		{volume.Action{Kind: call.ControllerPublish, NodeID: "n"}, volume.Outcome{PublishContext: map[string]string{"dev": "sda"}}},
		{volume.Action{Kind: call.NodeStage, Path: "/s"}, volume.Outcome{Mount: mountID(1), Devices: []volume.Device{{Number: "8:1"}}}},
		{volume.Action{Kind: call.NodePublish, Alloc: "a", Path: "/t/a"}, volume.Outcome{Mount: mountID(2)}},
	} {
		r, _ = volume.Apply(r, step.a, step.out)
	}
	if r.Claims["a"].State != volume.Mounted {
		t.Fatalf("the claim is %+v", r.Claims["a"])
	}
	return r
}

func TestLoaded(t *testing.T) {
	settled := mounted(t)
	pending := admit(t, settled, with(writer("b"), func(q *volume.Request) { q.At = "/srv" }))
	releasing, err := volume.Detach(settled, "a")
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := volume.Admit(offering(call.SingleNodeWriter), writer("a"), plugin.Info{Caps: plugin.Caps{Attach: true, Stage: true}}, now)
	if err != nil {
		t.Fatal(err)
	}
	plain := admit(t, offering(call.SingleNodeWriter), writer("a"))
	detaching := releasing
	for _, k := range []call.Method{call.NodeUnpublish, call.NodeUnstage, volume.Prove} {
		detaching, _ = volume.Apply(detaching, volume.Action{Kind: k, Alloc: "a", Path: map[call.Method]string{call.NodeUnpublish: "/t/a"}[k]}, volume.Outcome{})
	}
	failed, _ := volume.Apply(settled, volume.Action{Kind: volume.Doubt, Alloc: "a", Path: "/t/a", Dead: true}, volume.Outcome{})
	beside := admit(t, settled, writer("b"))
	beside, _ = volume.Apply(beside, volume.Action{Kind: call.NodePublish, Alloc: "b", Path: "/t/b"}, volume.Outcome{Mount: mountID(3)})
	if beside, err = volume.Detach(beside, "a"); err != nil {
		t.Fatal(err)
	}
	unattached := fresh
	unattached.Node.Attached = volume.Failed
	left := offering(call.SingleNodeWriter)
	left.Node = volume.NodeSide{Uses: volume.Uses{Attach: true}, Attached: volume.Present, NodeID: "n"}
	owing := offering(call.SingleNodeWriter)
	owing.Node.PendingCalls = pendingAfterDetach()
	for _, tt := range []struct {
		name             string
		r                volume.Record
		changed          bool
		attached, staged volume.Side
		published, bound map[string]volume.Side
		watches          int
	}{
		{"settled", settled, false, volume.Present, volume.Present, sides("a", volume.Present), sides("a", volume.Absent), 0},
		{"just admitted", fresh, true, volume.Unknown, volume.Unknown, sides("a", volume.Unknown), sides("a", volume.Absent), 3},
		{"just admitted, a plugin that only publishes", plain, true, volume.Absent, volume.Absent, sides("a", volume.Unknown), sides("a", volume.Absent), 1},
		{"pending beside settled", pending, true, volume.Present, volume.Present,
			sides("a", volume.Present, "b", volume.Unknown), sides("a", volume.Absent, "b", volume.Unknown), 1},
		{"release asked for: an undoing call may be at work", releasing, true, volume.Present, volume.Unknown, sides("a", volume.Present), sides("a", volume.Absent), 3},
		{"release asked for beside one in use: the staging stays", beside, true, volume.Present, volume.Present,
			sides("a", volume.Present, "b", volume.Present), sides("a", volume.Absent, "b", volume.Absent), 1},
		{"a side failed: the same", failed, true, volume.Present, volume.Present, sides("a", volume.Failed), sides("a", volume.Absent), 2},
		{"calls are owed: the same", owing, true, volume.Absent, volume.Absent, nil, nil, 2},
		{"node detached: so may a detach be", detaching, true, volume.Unknown, volume.Absent, sides("a", volume.Absent), sides("a", volume.Absent), 1},
		{"the attach failed: it may be undone, and made again", unattached, true, volume.Failed, volume.Unknown, sides("a", volume.Unknown), sides("a", volume.Absent), 4},
		{"attached, and nobody claims it", left, true, volume.Unknown, volume.Absent, nil, nil, 1},
		{"free", offering(call.SingleNodeWriter), false, volume.Absent, volume.Absent, nil, nil, 0},
	} {
		got, changed := volume.Loaded(tt.r, volume.Crashed, false)
		if changed != tt.changed || changed == reflect.DeepEqual(got, tt.r) {
			t.Errorf("%s: it says changed: %t, want %t; it is: %t", tt.name, changed, tt.changed, !reflect.DeepEqual(got, tt.r))
		}
		if got.Node.Attached != tt.attached || got.Node.Staged != tt.staged || len(got.Node.Watches) != tt.watches {
			t.Errorf("%s: attached %s, staged %s, watches %v", tt.name, got.Node.Attached, got.Node.Staged, got.Node.Watches)
		}
		for alloc, c := range got.Claims {
			if c.Published != tt.published[alloc] || c.Bound != tt.bound[alloc] {
				t.Errorf("%s: %s is published %s, bound %s", tt.name, alloc, c.Published, c.Bound)
			}
		}
		if again, changed := volume.Loaded(got, volume.Crashed, false); changed || !reflect.DeepEqual(again, got) {
			t.Errorf("%s: a second restart changes it again", tt.name)
		}
	}
}

// TestLoadedBlocked checks a record whose storage has pending calls of a forced deregister. The
// agent has not made a call for this record, so even after a crash its sides are known to be
// absent.
func TestLoadedBlocked(t *testing.T) {
	fresh, err := volume.Admit(offering(call.SingleNodeWriter), writer("a"), plugin.Info{Caps: plugin.Caps{Attach: true, Stage: true}}, now)
	if err != nil {
		t.Fatal(err)
	}
	for _, after := range []volume.Stop{volume.Crashed, volume.Rebooted} {
		if got, changed := volume.Loaded(fresh, after, true); changed || !reflect.DeepEqual(got, fresh) {
			t.Errorf("after %d: %t, %+v", after, changed, got)
		}
	}
	releasing, err := volume.Detach(mounted(t), "a")
	if err != nil {
		t.Fatal(err)
	}
	if got, changed := volume.Loaded(releasing, volume.Crashed, true); !changed || got.Node.Staged != volume.Unknown {
		t.Errorf("with something on record: %t, %+v", changed, got.Node)
	}
}

// TestLoadedOtherwise checks Loaded after an end of the agent other than a crash. After a clean
// stop, Loaded must not change the record. After a reboot, no call is in progress, so no watched
// mount can appear.
func TestLoadedOtherwise(t *testing.T) {
	r, err := volume.Admit(offering(call.SingleNodeWriter), writer("a"), plugin.Info{Caps: plugin.Caps{Attach: true, Stage: true}}, now)
	if err != nil {
		t.Fatal(err)
	}
	r.Node.Watches = []volume.Watch{{Path: "/s"}}
	r.Node.Unseen = []volume.Unseen{{Path: "/t/b"}}
	if got, changed := volume.Loaded(r, volume.Stopped, false); changed || !reflect.DeepEqual(got, r) {
		t.Errorf("after a stop: %t, %+v", changed, got)
	}
	got, changed := volume.Loaded(r, volume.Shut, false)
	if c := got.Claims["a"]; !changed || len(got.Node.Watches)+len(got.Node.Unseen) > 0 || c != r.Claims["a"] || got.Node.Staged != r.Node.Staged {
		t.Errorf("after the host was shut down: %t, %+v", changed, got)
	}
	got, changed = volume.Loaded(r, volume.Rebooted, false)
	if c := got.Claims["a"]; !changed || len(got.Node.Unseen) > 0 || c.Published != volume.Unknown || got.Node.Staged != volume.Unknown {
		t.Errorf("after a reboot: %t, %+v", changed, got)
	}
	// The storage system may continue a call while this host is restarted.
	late := []volume.Watch{{Attachment: true}}
	if !reflect.DeepEqual(got.Node.Watches, late) {
		t.Errorf("after a reboot these late effects are expected: %+v", got.Node.Watches)
	}
	if got, _ = volume.Loaded(got, volume.Shut, false); !reflect.DeepEqual(got.Node.Watches, late) {
		t.Errorf("after the host was shut down these are: %+v", got.Node.Watches)
	}
	debt := volume.NextBoot(volume.LeftoverOf(mounted(t)))
	if n := debt.Node; !debt.Leftover || len(debt.Claims) > 0 || n.Staged != volume.Absent || n.Attached == volume.Absent || n.NodeID != "n" {
		t.Errorf("a debt with an attachment, in the next boot: %+v", debt)
	}
	plain := mounted(t)
	plain.Node.Attached, plain.Node.Uses.Attach = volume.Absent, false
	if debt := volume.NextBoot(volume.LeftoverOf(plain)); debt.Held() {
		t.Errorf("a debt without one: %+v", debt)
	}
}

func sides(pairs ...any) map[string]volume.Side {
	m := map[string]volume.Side{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1].(volume.Side)
	}
	return m
}

// TestRecordOnDisk checks that storing and reading a record does not change it. Only the proof of
// unmount is not stored.
func TestRecordOnDisk(t *testing.T) {
	want := mounted(t)
	want.Node.Watches = []volume.Watch{{Path: "/t/b", Alloc: "b"}}
	stored := want
	stored.Node.Proven = true
	raw, err := json.Marshal(stored)
	if err != nil {
		t.Fatal(err)
	}
	claim, err := json.Marshal(want.Claims["a"])
	if err != nil {
		t.Fatal(err)
	}
	var got volume.Record
	var c volume.Claim
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(claim, &c); err != nil {
		t.Fatal(err)
	}
	got.Claims = map[string]volume.Claim{"a": c}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
}

// TestDurableCommits checks the number of commits for which the agent waits. A claim needs two
// commits, and so does a detach. ControllerUnpublishVolume needs one more. All other steps need
// none.
func TestDurableCommits(t *testing.T) {
	for _, tt := range []struct {
		v       variant
		mount   int
		release int
	}{
		{variant{name: "neither"}, 1, 1},
		{variant{name: "stage", stage: true}, 1, 1},
		{variant{name: "stage and bind", stage: true, bind: true}, 1, 1},
		{variant{name: "attach and stage", attach: true, stage: true}, 1, 2},
	} {
		s := state{left: budget{intents: 2}}
		s.mem = offering(call.SingleNodeMultiWriter)
		for _, part := range []struct {
			in   intent
			want int
		}{{intent{"claim", 0}, tt.mount}, {intent{"release", 0}, tt.release}} {
			var ok bool
			if s, ok = s.wish(tt.v, part.in); !ok {
				t.Fatalf("%s: %s is refused", tt.v.name, part.in.what)
			}
			if got := run(t, tt.v, &s); got != part.want {
				t.Errorf("%s: %s costs %d commits beside its intent, want %d", tt.v.name, part.in.what, got, part.want)
			}
		}
		if s.mem.Held() || s.w.mounted() || s.w.attached {
			t.Errorf("%s: not free at the end: %+v, %+v", tt.v.name, s.mem, s.w)
		}
	}
}

// run runs steps without faults until the volume needs no step. It returns the number of commits
// for which the agent waits.
func run(t *testing.T, v variant, s *state) (commits int) {
	t.Helper()
	for range enough {
		a := volume.Next(s.mem, s.w.observe(v, s.mem, bothUp, 0, 0, -1))
		if a.Kind == volume.Settled {
			return commits
		}
		if a.Kind == volume.Wait {
			t.Fatalf("waits: %s", a.Reason)
		}
		before := s.mem
		*s = s.save(a, s.w.do(v, a, ok, s.fresh()))
		if volume.Urgency(before, s.mem) != volume.SaveWithNext {
			commits++
		}
	}
	t.Fatalf("does not come to rest: %+v", s.mem)
	return 0
}

// TestStoredState checks that a stored record contains Nomad's name for a mounted claim, and that
// the agent can read this name.
func TestStoredState(t *testing.T) {
	for _, tt := range []struct {
		state  volume.ClaimState
		stored string
	}{
		{volume.Pending, `"pending"`},
		{volume.Mounted, `"taken"`},
		{volume.Unpublishing, `"unpublishing"`},
		{"of a later agent", `"of a later agent"`},
	} {
		raw, err := json.Marshal(tt.state)
		if err != nil || string(raw) != tt.stored {
			t.Errorf("%s is stored as %s, %v; want %s", tt.state, raw, err, tt.stored)
		}

		var got volume.ClaimState
		if err := json.Unmarshal(raw, &got); err != nil || got != tt.state {
			t.Errorf("%s reads as %s, %v", raw, got, err)
		}
	}
}
