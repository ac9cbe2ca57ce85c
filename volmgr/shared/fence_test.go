package shared

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// fencer is the host that decides in these tests. It is registered as incarnation 3 in epoch 1.
var fencer = Asker{Node: "b", Incarnation: 3, Era: Era{Epoch: 1}}

// fenceOf returns the keys about the host "a", which is gone, in a state. The argument by is the host that
// fences it, or empty.
func fenceOf(state NodeState, by string) Fence {
	n := Node{Incarnation: 5, State: state, Boot: "boot", Since: time.Unix(1, 0)}
	if by != "" {
		n.Fencing = &Fencing{By: by, ByIncarnation: 3, Era: Era{Epoch: 1}, Was: NodeReady, Since: time.Unix(1, 0)}
	}
	return Fence{
		Meta: stored(MetaKey, Meta{Schema: Schema, Epoch: 1}), Own: stored(NodeKey("b"), Node{Incarnation: 3, State: NodeReady}),
		Node: stored(NodeKey("a"), n), Live: Entry[Live]{KV: KV{Key: LiveKey("a")}},
		Info:  stored(NodeInfoKey("a"), NodeInfo{Plugins: map[string]NodePlugin{"san": {Fence: plugin.FenceDetach}}}),
		Proof: Entry[Proof]{KV: KV{Key: FencedKey("a", 5)}}, Writer: stored(LiveKey(by), Live{Incarnation: 3}),
		Returned: Entry[Returned]{KV: KV{Key: ReturnedKey("a")}}, node: "a", writer: by, incarnation: 5,
	}
}

// nodeAfter returns the node that a transaction writes for the host "a".
func nodeAfter(t *testing.T, txn Txn) Node {
	t.Helper()
	for _, op := range txn.Then {
		if op.Kind == OpPut && op.Key == NodeKey("a") {
			e, err := Decode[Node](KV{Key: op.Key, Value: op.Value, Mod: 9})
			if err != nil {
				t.Fatal(err)
			}
			return e.Value
		}
	}
	t.Fatalf("the transaction does not change the host: %+v", txn)
	return Node{}
}

// proofAfter returns the proof that a transaction writes for the host "a".
func proofAfter(t *testing.T, txn Txn) Proof {
	t.Helper()
	for _, op := range txn.Then {
		if op.Key == FencedKey("a", 5) {
			e, err := Decode[Proof](KV{Key: op.Key, Value: op.Value, Mod: 9})
			if err != nil {
				t.Fatal(err)
			}
			return e.Value
		}
	}
	t.Fatalf("the transaction writes no proof: %+v", txn)
	return Proof{}
}

// compares reports whether a transaction compares a key.
func compares(txn Txn, key string) bool {
	return slices.ContainsFunc(txn.If, func(c Compare) bool { return c.Key == key })
}

// TestBeginFence checks which hosts a host may begin to fence, and the state that they get.
func TestBeginFence(t *testing.T) {
	for name, c := range map[string]struct {
		f      Fence
		change func(*Fence)
		who    Asker
		want   error
		none   bool // an empty transaction
	}{
		"ready":                 {f: fenceOf(NodeReady, "")},
		"away":                  {f: fenceOf(NodeAway, "")},
		"draining":              {f: fenceOf(NodeDraining, "")},
		"fenced":                {f: fenceOf(NodeFenced, "b")},
		"fenced by this host":   {f: fenceOf(NodeFencing, "b"), none: true},
		"fenced by another":     {f: fenceOf(NodeFencing, "c"), want: ErrFencedElsewhere},
		"its writer is gone":    {f: fenceOf(NodeFencing, "c"), change: func(f *Fence) { f.Writer = Entry[Live]{} }},
		"its writer restarted":  {f: fenceOf(NodeFencing, "c"), change: func(f *Fence) { f.Writer.Value.Incarnation = 4 }},
		"this host restarted":   {f: fenceOf(NodeFencing, "b"), who: Asker{Node: "b", Incarnation: 4, Era: Era{Epoch: 1}}, change: func(f *Fence) { f.Own.Value.Incarnation, f.Writer.Value.Incarnation = 4, 4 }},
		"fenced before restore": {f: fenceOf(NodeFencing, "c"), change: func(f *Fence) { f.Node.Value.Fencing.Era = Era{} }},
		"replaced":              {f: fenceOf(NodeFencing, ""), want: ErrFencedElsewhere},
		"alive":                 {f: fenceOf(NodeReady, ""), change: func(f *Fence) { f.Live = stored(LiveKey("a"), Live{}) }, want: volume.ErrRefused},
		"suspended":             {f: fenceOf(NodeReady, ""), change: func(f *Fence) { f.Meta.Value.Suspended = "restored" }, want: volume.ErrRefused},
		"not a host":            {f: fenceOf(NodeReady, ""), change: func(f *Fence) { f.Node = Entry[Node]{} }, want: volume.ErrNotFound},
		"not registered":        {f: fenceOf(NodeReady, ""), change: func(f *Fence) { f.Own.Value.Incarnation = 9 }, want: ErrUnregistered},
		"is fenced itself":      {f: fenceOf(NodeReady, ""), change: func(f *Fence) { f.Own.Value.State = NodeFencing }, want: ErrUnregistered},
	} {
		if c.change != nil {
			c.change(&c.f)
		}
		who := fencer
		if c.who.Node != "" {
			who = c.who
		}
		txn, err := c.f.Begin(who, time.Unix(9, 0))
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil || c.none {
			if len(txn.Then) > 0 {
				t.Errorf("%s: %+v", name, txn)
			}
			continue
		}

		n := nodeAfter(t, txn)
		if n.State != NodeFencing || n.Incarnation != 5 || n.Fencing.By != "b" || n.Fencing.ByIncarnation != who.Incarnation || n.Fencing.Era != who.Era {
			t.Errorf("%s: the host becomes %+v, %+v", name, n, n.Fencing)
		}
		for _, key := range []string{MetaKey, NodeKey("b"), NodeKey("a"), LiveKey("a"), FencedKey("a", 5)} {
			if !compares(txn, key) {
				t.Errorf("%s: the transaction does not compare %s", name, key)
			}
		}
	}
}

// TestEndFence checks the state of a host after its fencing.
func TestEndFence(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Fence)
		want   NodeState
	}{
		"nothing was dropped":       {func(*Fence) {}, NodeReady},
		"it was draining":           {func(f *Fence) { f.Node.Value.Fencing.Was = NodeDraining }, NodeDraining},
		"it was fenced before":      {func(f *Fence) { f.Node.Value.Fencing.Was = NodeFenced }, NodeFenced},
		"a hold was dropped":        {func(f *Fence) { f.Proof = stored(FencedKey("a", 5), Proof{Drops: []Drop{{Volume: "db"}}}) }, NodeFenced},
		"a hook was asked":          {func(f *Fence) { f.Node.Value.Fencing.Hook = true }, NodeFenced},
		"another host has taken it": {func(f *Fence) { f.Node.Value.Fencing.By = "c" }, ""},
		"it has ended":              {func(f *Fence) { f.Node.Value.State = NodeFenced }, ""},
	} {
		f := fenceOf(NodeFencing, "b")
		c.change(&f)
		txn, err := f.End(fencer, time.Unix(9, 0))
		if err != nil || len(txn.Then) == 0 != (c.want == "") {
			t.Errorf("%s: %+v, %v", name, txn, err)
			continue
		}
		if c.want == "" {
			continue
		}
		n := nodeAfter(t, txn)
		if n.State != c.want || (n.Fencing != nil) != (c.want == NodeFenced) {
			t.Errorf("%s: the host becomes %+v", name, n)
		}
	}
}

// TestProofs checks the proofs for a whole host.
func TestProofs(t *testing.T) {
	now := time.Unix(9, 0)
	f := fenceOf(NodeFencing, "b")
	if _, err := f.ProveHook(fencer, "ipmi", now); !errors.Is(err, ErrFencedElsewhere) {
		t.Errorf("a hook that was not asked: %v", err)
	}
	txn, err := f.AskHook(fencer, "ipmi", now)
	if p, n := proofAfter(t, txn), nodeAfter(t, txn); err != nil || !n.Fencing.Hook || n.Fencing.Proven != "" || len(p.Hooks) != 1 || p.Hooks[0].Name != "ipmi" {
		t.Errorf("a hook is asked: %+v, %+v, %v", n.Fencing, p, err)
	}

	f.Node.Value = nodeAfter(t, txn)
	txn, err = f.ProveHook(fencer, "ipmi", now)
	if p, n := proofAfter(t, txn), nodeAfter(t, txn); err != nil || n.State != NodeFenced || !n.ProvenOff(f.Meta.Value) || p.Kind != ProvenHook || p.Era != fencer.Era {
		t.Errorf("a hook has switched it off: %+v, %+v, %v", n, p, err)
	}
	if n := nodeAfter(t, txn); n.ProvenOff(Meta{Epoch: 2}) {
		t.Error("a proof counts in the next epoch")
	}
	other := fenceOf(NodeFencing, "c")
	other.Node.Value.Fencing.Hook = true
	if _, err := other.ProveHook(fencer, "ipmi", now); !errors.Is(err, ErrFencedElsewhere) {
		t.Errorf("the hook of another host: %v", err)
	}

	for name, c := range map[string]struct {
		back   Returned
		proves bool
	}{
		"rebooted":            {Returned{Boot: "next"}, true},
		"rebooted and mounts": {Returned{Boot: "next", Mounted: []string{"db"}}, false},
		"the same boot":       {Returned{Boot: "boot"}, false},
		"an unknown boot":     {Returned{}, false},
	} {
		f := fenceOf(NodeFencing, "b")
		f.Returned = stored(ReturnedKey("a"), c.back)
		txn, err := f.ProveReturned(fencer, now)
		if err != nil || len(txn.Then) > 0 != c.proves || c.proves && !compares(txn, ReturnedKey("a")) {
			t.Errorf("%s: %+v, %v", name, txn, err)
		}
	}
}

// TestDeclare checks which statements of a person count.
func TestDeclare(t *testing.T) {
	now := time.Unix(9, 0)
	for name, c := range map[string]struct {
		f      Fence
		change func(*Fence)
		want   error
		none   bool
	}{
		"gone":                 {f: fenceOf(NodeReady, "")},
		"away":                 {f: fenceOf(NodeAway, "")},
		"fenced by another":    {f: fenceOf(NodeFencing, "c")},
		"suspended":            {f: fenceOf(NodeReady, ""), change: func(f *Fence) { f.Meta.Value.Suspended = "restored" }},
		"volumes are detached": {f: fenceOf(NodeFenced, "c")},
		"proven":               {f: fenceOf(NodeFenced, "c"), change: func(f *Fence) { f.Node.Value.Fencing.Proven = ProvenHook }, none: true},
		"alive":                {f: fenceOf(NodeReady, ""), change: func(f *Fence) { f.Live = stored(LiveKey("a"), Live{}) }, want: volume.ErrRefused},
		"being replaced":       {f: fenceOf(NodeFencing, ""), change: func(f *Fence) { f.Proof = stored(FencedKey("a", 5), Proof{Kind: Replaced}) }, want: volume.ErrRefused},
	} {
		if c.change != nil {
			c.change(&c.f)
		}
		txn, err := c.f.Declare(fencer, "uid 0", "unplugged", now)
		if !errors.Is(err, c.want) || c.want == nil && err != nil || len(txn.Then) == 0 != (c.none || err != nil) {
			t.Errorf("%s: %+v, %v", name, txn, err)
		}
		if err != nil || c.none {
			continue
		}
		n, p := nodeAfter(t, txn), proofAfter(t, txn)
		if n.State != NodeFenced || n.Fencing.Proven != ProvenPerson || p.Who != "uid 0" || p.Reason != "unplugged" || !p.At.Equal(now) {
			t.Errorf("%s: %+v, %+v", name, n, p)
		}
	}
}

// TestCheckUnfence checks that no host gets its access back while it may have mounts that it has lost.
func TestCheckUnfence(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Fence)
		words  bool
	}{
		"not back":               {func(*Fence) {}, true},
		"back and mounted":       {func(f *Fence) { f.Returned = stored(ReturnedKey("a"), Returned{Boot: "boot", Mounted: []string{"db"}}) }, true},
		"back and unmounted":     {func(f *Fence) { f.Returned = stored(ReturnedKey("a"), Returned{Boot: "boot"}) }, false},
		"rebooted":               {func(f *Fence) { f.Returned = stored(ReturnedKey("a"), Returned{Boot: "next", Mounted: []string{"db"}}) }, false},
		"being fenced":           {func(f *Fence) { f.Node.Value.State = NodeFencing }, true},
		"registered":             {func(f *Fence) { f.Node.Value.State, f.Node.Value.Fencing = NodeReady, nil }, false},
		"registered, quarantine": {func(f *Fence) { f.Node.Value.State, f.Node.Value.Quarantined = NodeReady, []string{"db"} }, true},
	} {
		f := fenceOf(NodeFenced, "b")
		c.change(&f)
		if err := f.CheckUnfence(fencer); (err != nil) != c.words {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// lostVolume returns the keys about the volume "db", which host "a" holds with an attachment.
func lostVolume(f Fence) Lost {
	return Lost{Fence: f, Situation: Situation{
		id: "db", Meta: f.Meta, Node: f.Node, Volume: stored(VolumeKey("db"), Definition{Volume: volume.Volume{PluginID: "san"}}),
		Use:  stored(UseKey("db"), Use{Access: call.SingleNodeWriter, Holder: "a", Generation: 1}),
		Hold: stored(HoldKey("a", "db"), Hold{Attachment: Attached, NodeID: "id-a", Operation: "op"}), Call: Entry[Call]{KV: KV{Key: CallKey("db")}},
	}}
}

// TestDetachProof checks when a detach proves that a host is cut off from a volume.
func TestDetachProof(t *testing.T) {
	now := time.Unix(9, 0)
	for name, c := range map[string]struct {
		change func(*Lost)
		want   error
	}{
		"attached":             {func(*Lost) {}, nil},
		"attaching":            {func(l *Lost) { l.Situation.Hold.Value.Attachment = Attaching }, nil},
		"a call in flight":     {func(l *Lost) { l.Situation.Call = stored(CallKey("db"), Call{Executor: "a"}) }, ErrNotReady},
		"no attachment":        {func(l *Lost) { l.Situation.Hold.Value.Attachment = "" }, volume.ErrRefused},
		"no node id":           {func(l *Lost) { l.Situation.Hold.Value.NodeID = "" }, volume.ErrRefused},
		"a call may arrive":    {func(l *Lost) { l.Situation.Hold.Value.Late = "c" }, volume.ErrRefused},
		"takeover: never":      {func(l *Lost) { l.Situation.Volume.Value.Volume.Takeover = volume.TakeoverNever }, volume.ErrRefused},
		"no hold":              {func(l *Lost) { l.Situation.Hold = Entry[Hold]{} }, ErrNotReady},
		"fenced by another":    {func(l *Lost) { l.Fence.Node.Value.Fencing.By = "c" }, ErrFencedElsewhere},
		"not fenced":           {func(l *Lost) { l.Fence.Node.Value.State, l.Fence.Node.Value.Fencing = NodeReady, nil }, ErrFencedElsewhere},
		"alive":                {func(l *Lost) { l.Fence.Live = stored(LiveKey("a"), Live{}) }, volume.ErrRefused},
		"suspended":            {func(l *Lost) { l.Fence.Meta.Value.Suspended = "restored" }, volume.ErrRefused},
		"reads do not fit":     {func(l *Lost) { l.Situation.Node.Mod++ }, ErrNotReady},
		"the meta do not fit":  {func(l *Lost) { l.Situation.Meta.Mod++ }, ErrNotReady},
		"this host is removed": {func(l *Lost) { l.Fence.Own = Entry[Node]{} }, ErrUnregistered},
	} {
		l := lostVolume(fenceOf(NodeFencing, "b"))
		c.change(&l)
		begun, err := l.BeginDetach(fencer, "fence-1", time.Minute, now)
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: begin: %v", name, err)
		}
		if c.want != nil {
			l.Situation.Call = stored(CallKey("db"), Call{Executor: "b", Operation: "fence-1", Fence: true, Target: "a"})
			if txn, err := l.DropDetached(fencer, "fence-1", now); err == nil && name != "a call in flight" {
				t.Errorf("%s: the hold is dropped: %+v", name, txn)
			}
			continue
		}

		after, err := l.Situation.After(begun, 20)
		if c := after.Call.Value; err != nil || !c.Fence || c.Call != call.ControllerUnpublish || c.NodeID != "id-a" || c.Target != "a" || c.Executor != "b" || c.Deadline != time.Minute {
			t.Errorf("%s: the announced call is %+v", name, c)
		}
		if h := after.Hold.Value; h.Attachment != Unclear || h.By != "b" {
			t.Errorf("%s: the hold becomes %+v", name, h)
		}
		l.Situation = after
		dropped, err := l.DropDetached(fencer, "fence-1", now)
		after, aerr := l.Situation.After(dropped, 21)
		if err != nil || aerr != nil || after.Hold.Exists() || after.Call.Exists() || after.Use.Value.Holder != "" || after.Use.Value.TakenOver == nil {
			t.Errorf("%s: after the drop: %+v, %v", name, after, err)
		}
		if p := proofAfter(t, dropped); p.Kind != ProvenDetach || !p.Has("db") || len(p.Drops) != 1 {
			t.Errorf("%s: the proof is %+v", name, p)
		}
		for _, key := range []string{MetaKey, HoldKey("a", "db"), UseKey("db"), CallKey("db"), VolumeKey("db"), NodeKey("a"), NodeKey("b"), LiveKey("a"), FencedKey("a", 5)} {
			if !compares(begun, key) || !compares(dropped, key) {
				t.Errorf("%s: the begin or the drop does not compare %s", name, key)
			}
		}
	}
}

// TestAnnouncedDetach checks that only the host which has announced a detach ends it.
func TestAnnouncedDetach(t *testing.T) {
	now := time.Unix(9, 0)
	ours := Call{Executor: "b", Incarnation: 3, Operation: "fence-1", Fence: true, Target: "a", NodeID: "id-a"}
	for name, c := range map[string]struct {
		change func(*Call)
		ours   bool
	}{
		"ours":              {func(*Call) {}, true},
		"another operation": {func(c *Call) { c.Operation = "fence-2" }, false},
		"taken over":        {func(c *Call) { c.Fence, c.Taken = false, true }, false},
		"with an executor":  {func(c *Call) { c.Executor = "c" }, false},
	} {
		l := lostVolume(fenceOf(NodeFencing, "b"))
		one := ours
		c.change(&one)
		l.Situation.Call = stored(CallKey("db"), one)
		if _, err := l.DropDetached(fencer, "fence-1", now); (err == nil) != c.ours {
			t.Errorf("%s: the drop: %v", name, err)
		}
		for _, uncertain := range []bool{false, true} {
			txn, err := l.LeaveDetach(fencer, "fence-1", uncertain)
			if err != nil || len(txn.Then) > 0 != c.ours {
				t.Errorf("%s: leave: %+v, %v", name, txn, err)
				continue
			}
			after, err := l.Situation.After(txn, 20)
			left := after.Call.Value
			if err != nil || c.ours && (after.Call.Exists() != uncertain || uncertain && !left.Outlived(Live{Incarnation: 3})) {
				t.Errorf("%s: left with %+v", name, left)
			}
		}
	}
}

// TestHandOver checks that a host hands over only a call that it has taken over. The call then belongs to no
// agent, although its executor is alive.
func TestHandOver(t *testing.T) {
	taken := Call{Executor: "b", Incarnation: 3, Call: call.ControllerUnpublish, Target: "a", NodeID: "id-a", Taken: true}
	own, other := taken, taken
	own.Taken, other.Executor = false, "c"
	for name, c := range map[string]struct {
		call Call
		want error
	}{
		"taken":            {taken, nil},
		"its own":          {own, ErrNotOrphan},
		"of another taker": {other, ErrNotOrphan},
	} {
		o := Orphan{Meta: stored(MetaKey, Meta{Schema: Schema, Epoch: 1}), Node: stored(NodeKey("b"), Node{Incarnation: 3, State: NodeReady}), Call: stored(CallKey("db"), c.call), node: "b", id: "db"}
		txn, err := o.HandOver(fencer)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if c.want != nil || err != nil {
			continue
		}
		e, err := Decode[Call](KV{Key: CallKey("db"), Value: txn.Then[0].Value, Mod: 9})
		if left := e.Value; err != nil || !left.Outlived(Live{Incarnation: 3}) || left.TakenOver("b") || left.NodeID != "id-a" {
			t.Errorf("%s: left with %+v", name, left)
		}
	}
}

// TestDropProven checks the drop of a hold of a host that is proven off.
func TestDropProven(t *testing.T) {
	now := time.Unix(9, 0)
	for name, c := range map[string]struct {
		change func(*Lost)
		want   error
		call   string // the executor of the call after the drop; empty if there is none
	}{
		"attached":      {func(*Lost) {}, nil, "b"},
		"no attachment": {func(l *Lost) { l.Situation.Hold.Value.Attachment = "" }, nil, ""},
		"a detach taken over": {func(l *Lost) {
			l.Situation.Call = stored(CallKey("db"), Call{Executor: "c", Call: call.ControllerUnpublish, Target: "a", Taken: true})
		}, nil, "c"},
		"a call of the host": {func(l *Lost) {
			l.Situation.Call = stored(CallKey("db"), Call{Executor: "a", Call: call.ControllerPublish, Target: "a"})
		}, ErrNotReady, ""},
		"a storage call": {func(l *Lost) {
			l.Situation.Call = stored(CallKey("db"), Call{Executor: "c", Call: call.ControllerExpand})
		}, ErrNotReady, ""},
		"no node id":            {func(l *Lost) { l.Situation.Hold.Value.NodeID = "" }, volume.ErrRefused, ""},
		"only detached volumes": {func(l *Lost) { l.Fence.Node.Value.Fencing.Proven = "" }, ErrFencedElsewhere, ""},
		"an earlier epoch":      {func(l *Lost) { l.Fence.Node.Value.Fencing.Era = Era{} }, ErrFencedElsewhere, ""},
		"takeover: never":       {func(l *Lost) { l.Situation.Volume.Value.Volume.Takeover = volume.TakeoverNever }, volume.ErrRefused, ""},
		"alive":                 {func(l *Lost) { l.Fence.Live = stored(LiveKey("a"), Live{}) }, volume.ErrRefused, ""},
		"suspended":             {func(l *Lost) { l.Fence.Meta.Value.Suspended = "restored" }, volume.ErrRefused, ""},
		"reads do not fit":      {func(l *Lost) { l.Situation.Node.Mod++ }, ErrNotReady, ""},
		"the meta do not fit":   {func(l *Lost) { l.Situation.Meta.Mod++ }, ErrNotReady, ""},
		"never, by a person": {func(l *Lost) {
			l.Situation.Volume.Value.Volume.Takeover, l.Fence.Node.Value.Fencing.Proven = volume.TakeoverNever, ProvenPerson
		}, nil, "b"},
	} {
		l := lostVolume(fenceOf(NodeFenced, "b"))
		l.Fence.Node.Value.Fencing.Proven = ProvenHook
		c.change(&l)
		txn, err := l.DropProven(fencer, time.Hour, now)
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.want != nil {
			continue
		}

		after, err := l.Situation.After(txn, 20)
		left := after.Call.Value
		detaches := left.Target == "a" && left.Call == call.ControllerUnpublish && left.TakenOver(c.call)
		if err != nil || after.Hold.Exists() || after.Call.Exists() != (c.call != "") || c.call != "" && !detaches {
			t.Errorf("%s: after the drop: %+v, the call %+v, %v", name, after.Hold, left, err)
		}
		if p := proofAfter(t, txn); !p.Has("db") || len(p.Drops) != 1 || p.Drops[0].Kind != l.Fence.Node.Value.Fencing.Proven {
			t.Errorf("%s: the proof is %+v", name, p)
		}
		for _, key := range []string{MetaKey, HoldKey("a", "db"), UseKey("db"), CallKey("db"), VolumeKey("db"), NodeKey("a"), NodeKey("b"), LiveKey("a"), FencedKey("a", 5)} {
			if !compares(txn, key) {
				t.Errorf("%s: the drop does not compare %s", name, key)
			}
		}
	}

	l := lostVolume(fenceOf(NodeFenced, "b"))
	l.Fence.Node.Value.Fencing.Proven = ProvenHook
	l.Situation.Hold = Entry[Hold]{}
	if txn, err := l.DropProven(fencer, time.Hour, now); err != nil || len(txn.Then) > 0 {
		t.Errorf("without a hold: %+v, %v", txn, err)
	}
}
