package volume_test

import (
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// state is one state of the agent and of the simulated world.
type state struct {
	mem, disk volume.Record // mem is the record in memory, and disk is the record that survives a crash
	w         world
	parked    parkedSet
	// undo is set by a failed stage and cleared by an unstage. While undo is set and no target is
	// published, the agent must not stage again.
	undo bool
	// lied is set while the plugin wrongly claims that the volume is staged.
	lied bool
	// proved is set by a proof of unmount, and cleared by the next call that makes a mount.
	proved bool
	// refused is set after the node has refused to expand the volume at its present mount.
	refused bool
	// behind is set after a user has unmounted the mount that owns the claim. The next mount that
	// owns the claim clears it.
	behind bool
	// down is set while the host goes down.
	down bool
	left budget

	// This half holds the record that the agent keeps after a forced deregister of the same
	// storage, if there was one. If swapped is set, the two records are exchanged, so that the next
	// step belongs to the deregistered record.
	debt    half
	swapped bool
}

// half is the part of a state that belongs to one of two records of the same storage.
type half struct {
	mem, disk volume.Record
	parked    parkedSet
}

func (s state) swap() state {
	s.debt, s.mem, s.disk, s.parked = half{s.mem, s.disk, s.parked}, s.debt.mem, s.debt.disk, s.debt.parked
	s.swapped = !s.swapped
	return s
}

// straight returns the same state with the registered record in mem. The field swapped is then
// false.
func (s state) straight() state {
	if s.swapped {
		return s.swap()
	}
	return s
}

// blocked reports whether pending calls of a forced deregister block the calls of the record mem.
func (s state) blocked() bool { return s.debt.mem.Leftover && !s.swapped }

// paid removes the deregistered record after all its sides have been undone. The removal is on disk
// at once.
func (s state) paid() state {
	s = s.straight()
	s.debt = half{}
	return s
}

// budget limits the faults, crashes and changes of intent that may still happen, which bounds the
// search.
//
// The field others limits how often another host acquires the hold of a shared volume, or takes it
// over.
type budget struct{ faults, crashes, intents, others uint8 }

// parkedSet is a set of failed steps that wait for a retry.
type parkedSet uint32

var parkable = []volume.Action{
	{Kind: call.ControllerPublish}, {Kind: call.NodeStage}, {Kind: call.NodeUnstage},
	{Kind: call.ControllerUnpublish}, {Kind: volume.Prove},
	{Kind: call.NodePublish, Alloc: "a"}, {Kind: call.NodePublish, Alloc: "b"},
	{Kind: call.NodeUnpublish, Alloc: "a"}, {Kind: call.NodeUnpublish, Alloc: "b"},
	{Kind: volume.Bind, Alloc: "a"}, {Kind: volume.Unbind, Alloc: "a"}, {Kind: volume.Own, Alloc: "a"},
	{Kind: volume.Unmount}, {Kind: volume.Unmount, Alloc: "a"}, {Kind: volume.Unmount, Alloc: "b"},
	{Kind: call.ControllerExpand}, {Kind: call.NodeExpand},
	{Kind: volume.Acquire}, {Kind: volume.Confirm}, {Kind: volume.GiveUp},
}

func (s parkedSet) with(a volume.Action, parked bool) parkedSet {
	i := slices.IndexFunc(parkable, func(p volume.Action) bool { return p.Key() == a.Key() })
	switch {
	case i < 0:
		return s
	case parked:
		return s | 1<<i
	default:
		return s &^ (1 << i)
	}
}

func (s parkedSet) keys() map[string]bool {
	if s == 0 {
		return nil
	}
	keys := map[string]bool{}
	for i, a := range parkable {
		if s&(1<<i) != 0 {
			keys[a.Key()] = true
		}
	}
	return keys
}

// fresh returns an id that differs from those of all existing and recorded mounts and holds.
func (s *state) fresh() uint8 {
	var used [32]bool
	for _, p := range []place{s.w.stage, s.w.target[0], s.w.target[1], s.w.bound[0], s.w.bound[1]} {
		used[p.id] = true
	}
	mark := func(m *volume.MountIdentity) {
		if m != nil {
			used[m.ID] = true
		}
	}
	used[s.w.token] = true
	for _, r := range []volume.Record{s.mem, s.disk, s.debt.mem, s.debt.disk} {
		mark(r.Node.Mount)
		used[r.Node.Hold.Token.Revision] = true
		for _, c := range r.Claims {
			mark(c.Mount)
			mark(c.BoundMount)
		}
	}
	return uint8(slices.Index(used[1:], false) + 1)
}

// key identifies a state. The same states can follow two states with the same key.
type key [96]byte

func (s *state) key() (k key) {
	b := k[:0]
	b = appendRecord(b, s.mem, &s.w)
	b = appendRecord(b, s.disk, &s.w)
	b = s.w.append(b)
	b = appendRecord(b, s.debt.mem, &s.w)
	b = appendRecord(b, s.debt.disk, &s.w)
	b = append(b, byte(s.debt.parked), byte(s.debt.parked>>8), byte(s.debt.parked>>16))
	b = append(b, byte(s.parked), byte(s.parked>>8), byte(s.parked>>16), bits(s.undo, s.lied, s.proved, s.refused, s.behind, s.down),
		s.left.faults, s.left.crashes, s.left.intents, s.left.others)
	if len(b) > len(k) {
		panic("key is too short")
	}
	return k
}

// future returns a key that covers only those fields of a state that matter if no further faults
// occur.
func (s *state) future() (k key) {
	b := appendRecord(k[:0], s.mem, &s.w)
	b = appendRecord(b, s.debt.mem, &s.w)
	b = s.w.append(b)
	_ = append(b, bits(s.down))
	return k
}

func (w *world) append(b []byte) []byte {
	b = append(b, bits(w.grown, w.filled, w.attached, w.staged, w.told[0], w.told[1], w.unseen, w.owned), byte(w.late), byte(w.late>>8), byte(w.negated),
		byte(w.hold)<<4|bits(w.confirmed, w.takenOver, w.had, w.asked), w.token)
	for _, p := range []place{w.stage, w.target[0], w.target[1], w.bound[0]} {
		b = append(b, p.id<<3|bits(p.dead, p.bare, p.stale))
	}
	return b
}

func appendRecord(b []byte, r volume.Record, w *world) []byte {
	n := r.Node
	mount := func(m *volume.MountIdentity) byte {
		if m == nil {
			return 0
		}
		return byte(m.ID)
	}
	b = append(b, bits(n.Mode != nil, n.Uses.Attach, n.Uses.Stage, n.Proven, n.NodeID != "", watches(r, stagingPath), watches(r, targets[0]), watches(r, targets[1])),
		bits(awaits(r, stagingPath), awaits(r, targets[0]), awaits(r, targets[1]), n.Boot == w.bootID(), watchesAttachment(r, false), watchesAttachment(r, true),
			r.Volume.RegisteredAt.IsZero()),
		side(n.Attached)<<2|side(n.Staged), mount(n.Mount),
		bits(r.Leftover, len(n.Unseen) > 0, hasPendingCall(r, call.NodeUnstage, stagingPath), hasPendingCall(r, call.NodeUnpublish, targets[0]), hasPendingCall(r, call.NodeUnpublish, targets[1])))
	var seq [2]uint64
	for i, alloc := range allocs {
		c, ok := r.Claims[alloc]
		seq[i] = c.Seq
		b = append(b, bits(ok, c.Wanted, c.Without == volume.ByUmount, c.Without == volume.ByLazy, c.Owned), claimState(c.State)<<4|side(c.Published)<<2|side(c.Bound), mount(c.Mount)<<4|mount(c.BoundMount))
	}
	x, h := r.Volume.Expansion, n.Hold
	b = append(b, side(h.State)<<4|bits(h.Operation != "", h.Confirmed, h.Lost, h.Unverified), byte(h.Token.Revision))
	return append(b, bits(seq[0] < seq[1], x.Want > 0, x.Offline, x.Node > 0, x.Refused.Step == call.ControllerExpand, x.Refused.Step == call.NodeExpand, r.Volume.Capacity == larger))
}

func side(s volume.Side) byte {
	return byte(slices.Index([]volume.Side{volume.Absent, volume.Unknown, volume.Failed, volume.Present}, s))
}

func claimState(s volume.ClaimState) byte {
	return byte(slices.Index([]volume.ClaimState{"", volume.Pending, volume.Mounted, volume.Unpublishing, volume.NodeDetached, volume.ControllerDetached}, s))
}

func bits(bs ...bool) (n byte) {
	for i, b := range bs {
		if b {
			n |= 1 << i
		}
	}
	return n
}

// crash returns the state after a crash and a restart of the agent. Changes that were not committed
// are lost. The plugin may still be working on its last call, unless the host was also restarted.
func (s state) crash(after volume.Stop) state {
	s = s.straight()
	s.mem, s.debt.mem = s.disk, s.debt.disk
	s.w.asked = false
	if after == volume.Rebooted {
		s.w.boot()
	}
	s = s.loaded(after)
	s.undo, s.proved, s.down = false, false, false
	if after == volume.Rebooted {
		// The agent stores the changed records together with the new boot id. Otherwise, after
		// another crash, the next agent would again treat the boot as new.
		s.disk, s.debt.disk = s.mem, s.debt.mem
		s = s.reap(s.mem.Claims[allocs[0]].Owner.Kind == volume.OwnerMount)
	}
	return s
}

// loaded returns the state with both records in the form in which the agent loads them at its
// start.
func (s state) loaded(after volume.Stop) state {
	s.mem.Node.Proven, s.debt.mem.Node.Proven = false, false // the agent never stores a proof
	s.parked, s.debt.parked = 0, 0
	s.mem, _ = volume.Loaded(s.mem, after, s.debt.mem.Leftover)
	if !s.debt.mem.Leftover {
		return s
	}
	s.debt.mem, _ = volume.Loaded(s.debt.mem, after, false)
	if after.Boot() {
		s.debt.mem = volume.NextBoot(s.debt.mem)
	}
	if !s.debt.mem.Held() {
		return s.paid()
	}
	return s
}

// reap detaches the first claim if past is set, because the mount that owns the claim has ended.
func (s state) reap(past bool) state {
	if next, err := volume.Detach(s.mem, allocs[0]); past && err == nil {
		s.mem, s.disk, s.parked = next, next, 0
	}
	return s
}

// stop returns the state after a clean stop and a restart of the agent. Every change is then on
// disk.
func (s state) stop() state {
	s.mem.Node.Proven, s.debt.mem.Node.Proven = false, false
	s.disk, s.debt.disk = s.mem, s.debt.mem
	s.w.asked = false
	s = s.loaded(volume.Stopped)
	s.proved, s.down = false, false
	return s
}

// shut returns the state after a clean stop of the agent, a shutdown of the host, and the next
// boot.
func (s state) shut() state {
	s.mem.Node.Proven, s.debt.mem.Node.Proven = false, false
	s.disk, s.debt.disk = s.mem, s.debt.mem
	s.w.boot()
	s = s.loaded(volume.Shut)
	s.undo, s.lied, s.proved, s.down = false, false, false, false
	return s.reap(s.mem.Claims[allocs[0]].Owner.Kind == volume.OwnerMount)
}

// observe returns the agent's observation of the host and the plugin in this state.
func (s state) observe(v variant, up serving, o over, hung int) volume.Observed {
	obs := s.w.observe(v, s.mem, up, o, s.parked, hung)
	obs.Down = s.down
	if s.blocked() {
		obs.Leftover = "a debt comes first"
	}
	return obs
}

// save stores the outcome of a step in the same way as the reconcile queue. A crash may lose a
// commit for which the agent does not wait.
func (s state) save(a volume.Action, out volume.Outcome) state {
	before := s.mem
	s.mem, _ = volume.Apply(s.mem, a, out)
	if volume.Urgency(before, s.mem) == volume.SaveFirst {
		s.disk = s.mem
	}
	s.parked = s.parked.with(a, out.Err != nil)
	return s
}

// intent is a request of a user. An accepted request is on disk, together with all earlier
// checkpoints. It also ends every backoff.
type intent struct {
	what  string
	alloc int
}

var intents = []intent{{"claim", 0}, {"claim", 1}, {"release", 0}, {"release", 1}}

// escapes lists the requests that users make if the plugin does not work.
var escapes = []intent{{"claim", 0}, {"claim", 1}, {"release", 0}, {"umount", 0}, {"lazy", 0}, {"lazy", 1}, {"force", 0}}

// returns lists the requests of a user who deregisters storage by force and registers it again.
// Afterwards, the second alloc claims the storage.
var returns = []intent{{"claim", 0}, {"release", 0}, {"lazy", 0}, {"force", 0}, {"claim", 1}, {"release", 1}}

// ends lists the requests that users make before the host goes down and while it goes down.
var ends = []intent{{"claim", 0}, {"claim", 1}, {"release", 0}, {"go down", 0}}

// growths lists the requests that users make for a volume that they also expand.
var growths = []intent{{"claim", 0}, {"claim", 1}, {"release", 0}, {"expand", 0}}

func (v variant) intents() []intent {
	all := v.requests()
	if v.shared && !v.again {
		return append(slices.Clone(all), intent{"lose", 0})
	}
	return all
}

func (v variant) requests() []intent {
	if v.goes {
		return ends
	}
	if v.expand {
		return growths
	}
	if v.again {
		return returns
	}
	if v.escape {
		return escapes
	}
	return intents
}

// wish returns the state after a user's request, and reports whether the request changed anything.
func (s state) wish(v variant, in intent) (state, bool) {
	if s.swapped {
		next, changed := s.swap().wish(v, in)
		return next.swap(), changed
	}
	if in.what == "lose" {
		return s.lose()
	}
	if s.left.intents == 0 || s.mem.Leftover || v.again && (in.alloc == 0) != s.mem.Volume.RegisteredAt.IsZero() {
		return s, false
	}
	if in.what == "go down" {
		was := s.down
		s.down, s.parked = true, 0
		s.left.intents--
		return s, !was
	}
	if s.down && in.what == "claim" {
		return s, false // while the host goes down, the agent refuses new claims
	}
	next, changed, err := s.wished(v, in)
	if err != nil || !changed {
		return s, false
	}
	if next.Leftover && v.again {
		s.debt = half{mem: next, disk: next}
		next = volume.Record{Volume: next.Volume}
		next.Volume.RegisteredAt = time.Unix(1, 0)
	}
	s.mem, s.disk, s.parked = next, next, 0
	s.refused = s.refused && in.what != "expand"
	s.behind = s.behind && (in.what != "claim" || in.alloc != 0)
	s.left.intents--
	return s, true
}

// lose returns the state after another host has taken over the hold, and this host has learned that.
func (s state) lose() (state, bool) {
	if s.left.others == 0 || s.w.hold != mine {
		return s, false
	}
	s.left.others--
	s.w.loseHold()
	s.w.had = false
	s.mem, _ = volume.LoseHold(s.mem)
	s.disk, s.parked = s.mem, 0
	return s, true
}

// takenOver returns the state in which another host has taken over the hold while this host was
// down. The record does not show this yet.
func (s state) takenOver() state {
	s.left.others--
	s.w.loseHold()
	return s
}

func (s state) wished(v variant, in intent) (next volume.Record, changed bool, err error) {
	alloc := allocs[in.alloc]
	switch in.what {
	case "claim":
		req := volume.Request{Alloc: alloc, Operation: "op", StagingPath: stagingPath, Target: targets[in.alloc], Terms: volume.Terms{Owner: volume.Owner{Kind: volume.OwnerNone}}}
		if v.bind {
			req.At = binds[in.alloc]
		}
		if v.kept && in.alloc == 0 {
			req.Owner = volume.Owner{Kind: volume.OwnerMount, PID: 7}
		}
		if v.own && in.alloc == 0 {
			req.Own = volume.Ownership{UID: "1000"}
		}
		info := plugin.Info{NodeID: "n", Caps: v.caps()}
		next, err = volume.Admit(s.mem, req, info, time.Time{})
		return next, len(next.Claims) != len(s.mem.Claims), err
	case "expand":
		return volume.Expand(s.mem, larger, plugin.Info{Caps: v.caps()}, nil)
	case "force":
		return volume.LeftoverOf(s.mem), s.mem.Held(), volume.Droppable(s.mem)
	case "release":
		next, err = volume.Detach(s.mem, alloc)
	default:
		next, err = volume.DetachWithout(s.mem, alloc, volume.Without(in.what))
	}
	return next, next.Claims[alloc] != s.mem.Claims[alloc], err
}
