package reconcile_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// pool is the cluster of a storm with shared volumes: its store and the other hosts.
type pool struct {
	shared     bool
	silent     bool // the store does not answer this host
	registered int  // the agent that has registered last; the store refuses the writes of all others
	tokens     int64
	names      int // of acquisitions
	keys       map[string]poolKey
}

// poolKey is the hold of one volume in the store.
type poolKey struct {
	holder    string // "" if no host has the hold, "this host" or "another host"
	operation string
	token     int64
	confirmed bool
	changes   int  // a late transaction has no effect after a further change
	unseen    bool // this host has lost the hold in this boot, and has not compared its holds since then
}

const (
	thisHost    = "this host"
	anotherHost = "another host"
)

// put changes the hold of a volume. The caller holds mu.
func (s *storm) put(id string, change func(*poolKey)) {
	k := s.keys[id]
	change(&k)
	k.changes++
	s.keys[id] = k
}

// free removes the hold from a key.
func free(k *poolKey) { *k = poolKey{changes: k.changes, unseen: k.unseen} }

// cluster returns the state of the cluster for a decision.
func (s session) cluster(volume.Record) volume.Cluster {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.away(s.agent) {
		return volume.Cluster{}
	}
	return volume.Cluster{Away: "the store does not answer", Silent: true}
}

// away reports whether an agent can change nothing in the store. The caller holds mu.
func (s *storm) away(agent int) bool { return s.shared && (s.silent || s.registered != agent) }

// stores reports whether a step is a transaction in the store.
func stores(a volume.Action) bool {
	return slices.Contains([]call.Method{volume.Acquire, volume.Confirm, volume.GiveUp}, a.Kind)
}

// transact performs a transaction in the store, and lets it end as its fate says. The caller holds mu.
func (s session) transact(r volume.Record, a volume.Action, f fate) volume.Outcome {
	if a.Kind == volume.GiveUp && r.Node.Hold.Lost {
		return volume.Outcome{} // the agent sends nothing
	}
	unsent := failedWith("Unavailable", volume.RetryBackoff, false)
	unsent.Unsent = true
	if s.away(s.agent) {
		return unsent
	}

	id, op := r.Volume.ID, r.Node.Hold.Operation
	lost := failedWith("Unavailable", volume.RetryBackoff, false)
	switch f {
	case refused, final:
		return unsent
	case failed, expired, lied:
		return lost
	case failedLater, expiredLater:
		agent, changes := s.agent, s.keys[id].changes
		s.odd++
		time.AfterFunc(callLimit*3/4+s.odd, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.registered == agent && s.keys[id].changes == changes {
				s.decide(id, op, a)
			}
		})
		return lost
	}
	out := s.decide(id, op, a)
	if f == failedDone {
		return lost
	}
	if a.Kind == volume.Confirm && out.Err != nil {
		s.compare(id)
	}
	return out
}

// decide executes a transaction. The caller holds mu.
func (s *storm) decide(id, operation string, a volume.Action) volume.Outcome {
	k := s.keys[id]
	mine := k.holder == thisHost && k.operation == operation
	held := failedWith(volume.CodeHeld, volume.RetryBackoff, true)
	switch {
	case a.Kind == volume.GiveUp && (mine || k.holder == ""):
		s.put(id, free)
	case a.Kind == volume.GiveUp:
		s.put(id, func(*poolKey) {}) // an earlier Acquire fails from now on
	case a.Kind == volume.Acquire && k.holder == "":
		s.tokens++
		s.put(id, func(k *poolKey) {
			*k = poolKey{holder: thisHost, operation: operation, token: s.tokens, changes: k.changes}
		})
	case !mine:
		return held
	case a.Kind == volume.Confirm:
		s.put(id, func(k *poolKey) { k.confirmed = true })
	}
	return volume.Outcome{Token: volume.Token{Revision: s.keys[id].token}}
}

// compare compares the records of a volume with its hold in the store, as an agent does after a
// registration, and when the store tells of a change. The caller holds mu.
func (s *storm) compare(id string) {
	k := s.keys[id]
	explained := false
	for _, key := range []string{id, leftoverKeyOf(volume.Record{Volume: stormVolume(id, true)})} {
		r, ok := s.mem[key]
		if !ok {
			continue
		}
		h := r.Node.Hold
		shown := k.holder == thisHost && k.operation == h.Operation
		explained = explained || shown
		r, _ = volume.SeenHold(r, shown)
		if h.State == volume.Present && !h.Lost && !shown {
			r, _ = volume.LoseHold(r)
		}
		s.mem[key] = r
	}
	if r, ok := s.mem[id]; k.holder == thisHost && !explained && (!ok || !r.Held()) {
		h := volume.Hold{State: volume.Unknown, Operation: k.operation, Access: call.SingleNodeMultiWriter}
		s.mem[id] = volume.Unexplained(stormVolume(id, true), volume.EarlierHold{Hold: h, Attached: s.attach, NodeID: "n"}, stagingOf(id))
	}
	s.keys[id] = func() poolKey { k.unseen = false; return k }()
	s.disk = maps.Clone(s.mem) // the agent repeats the comparison until the disk has it
}

// answer makes the store answer this host again. The agent registers and compares its holds.
func (h *stormHost) answer() {
	h.mu.Lock()
	h.silent = false
	if h.shared && h.registered != h.agent {
		h.registered = h.agent
	}
	for _, id := range stormVolumes {
		if h.shared {
			h.compare(id)
		}
	}
	h.mu.Unlock()
	for _, id := range stormVolumes {
		h.wake(id)
	}
}

// wake wakes the records of a volume.
func (h *stormHost) wake(id string) {
	h.q.Wake(id)
	h.q.Wake(leftoverKeyOf(volume.Record{Volume: stormVolume(id, h.shared)}))
}

// others changes the hold of a volume in the name of another host. If lost is set, the hold of this host
// passes to the other one, because a person has said that this host is gone. That is refused while this
// host reaches the store.
func (h *stormHost) others(id string, lost bool) {
	h.mu.Lock()
	k := h.keys[id]
	switch {
	case !h.shared:
	case k.holder == "" && !lost:
		h.put(id, func(k *poolKey) { k.holder = anotherHost })
	case k.holder == anotherHost && !lost:
		h.put(id, free)
	case k.holder == thisHost && lost && h.away(h.agent):
		h.put(id, func(k *poolKey) { *k = poolKey{holder: anotherHost, changes: k.changes, unseen: true} })
		h.done["attached "+id] = false // the other host has detached this one
	}
	h.mu.Unlock()
	h.wake(id)
}

// holdRule returns a description of the rule about holds that a step would break, or "". The caller
// holds mu.
func (s *storm) holdRule(r volume.Record, a volume.Action) string {
	id, k := r.Volume.ID, s.keys[r.Volume.ID]
	mine := k.holder == thisHost && k.operation == r.Node.Hold.Operation || k.unseen
	lost := r.Node.Hold.Lost
	mounts := a.Kind == call.NodeStage || a.Kind == call.NodePublish
	switch {
	case !s.shared && stores(a):
		return "a volume of one host needs no hold"
	case !s.shared:
		return ""
	case lost && (attaches(a) || a.Kind == volume.Acquire || a.Kind == volume.Confirm):
		return "the hold is lost"
	case stores(a) && r.Node.Hold.Operation == "":
		return "the acquisition has no name"
	case (mounts || a.Kind == call.ControllerPublish || a.Kind == volume.Confirm) && !mine:
		return "this host does not have the hold"
	case mounts && s.attach && !k.confirmed && !k.unseen:
		return "the store does not show the attachment"
	}
	if a.Kind != volume.GiveUp {
		return ""
	}

	paths := s.under(id, false)
	switch {
	case len(paths) > 0 || s.done["staged "+id]:
		return fmt.Sprint("it is still mounted at ", paths)
	case s.pending[fmt.Sprint(s.life, id)] > 0:
		return "a call may still mount it"
	case !lost && (s.done["attached "+id] || s.cloud[fmt.Sprint(call.ControllerPublish, id)] > 0):
		return "it is, or may still be, attached"
	}
	return ""
}

// forgottenHold describes a hold of this host that no record shows, or returns "". The caller holds mu.
func (s *storm) forgottenHold(id string, known []volume.Record) string {
	k := s.keys[id]
	if k.holder != thisHost || slices.ContainsFunc(known, func(r volume.Record) bool {
		return r.Node.Hold.Operation == k.operation && r.Node.Hold.State != volume.Absent
	}) {
		return ""
	}
	return fmt.Sprintf("the hold of %q", id)
}

// unsettledHold describes a hold that is missing or superfluous at rest, or returns "". The caller
// holds mu.
func (s *storm) unsettledHold(r volume.Record, held bool) string {
	id, k := r.Volume.ID, s.keys[r.Volume.ID]
	switch {
	case !s.shared:
		return ""
	case held && (k.holder != thisHost || k.operation != r.Node.Hold.Operation):
		return fmt.Sprintf("%q is claimed, and the hold in the store is %+v", id, k)
	case held && s.attach && !k.confirmed:
		return fmt.Sprintf("%q is claimed, and the store does not show its attachment", id)
	case !held && k.holder == thisHost:
		return fmt.Sprintf("%q is not claimed, and this host holds it: %+v", id, r.Node.Hold)
	}
	return ""
}

// TestStormOfHolds repeats storms that lead a shared volume through the events of a cluster.
func TestStormOfHolds(t *testing.T) {
	claim := deed{What: "claim", Volume: "v", Alloc: "a", Then: time.Second}
	release := deed{What: "release", Volume: "v", Alloc: "a", Then: 3 * time.Second}
	other := deed{What: "another host comes and goes", Volume: "v", Then: 3 * time.Second}
	away, back := deed{What: "the store is silent", Then: time.Second}, deed{What: "the store answers", Then: time.Second}
	lost := deed{What: "the hold is lost", Volume: "v", Then: time.Second}
	released := release
	released.Then = 60 * time.Millisecond
	slow := claim
	slow.Then = 2*time.Second + 50*time.Millisecond
	for name, c := range map[string]struct {
		fates []fate
		deeds []deed
	}{
		"a claim waits for another host":              {nil, []deed{other, claim, other}},
		"the last claim ends while the store is away": {nil, []deed{claim, away, release, claim, back}},
		"the agent dies while the store is away":      {nil, []deed{claim, away, {What: "kill the agent", Then: time.Second}, release, back}},
		"the host boots while the store is away":      {nil, []deed{claim, away, {What: "reboot", Then: time.Second}, back}},
		"the hold is lost while the store is away":    {nil, []deed{claim, away, lost, back, other, claim}},
		"the hold is lost, and the host boots":        {nil, []deed{claim, away, lost, {What: "reboot", Then: time.Second}, back, other, claim}},
		"a forced deregister":                         {nil, []deed{claim, away, {What: "force", Volume: "v", Then: time.Second}, {What: "register", Volume: "v", Then: time.Second}, claim, back}},
		"a late give-up, and a new claim":             {[]fate{goes, goes, goes, failedLater}, []deed{claim, released, claim}},
		"a late give-up after a detach":               {[]fate{goes, goes, goes, goes, goes, goes, failedLater}, []deed{claim, released, claim}},
		"a late mount, and a release":                 {[]fate{goes, expiredLater}, []deed{slow, released}},
		"a late acquisition, and a release":           {[]fate{expiredLater}, []deed{claim, released, other}},
	} {
		for _, attach := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/attach=%t", name, attach), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := &stormHost{storm: newStorm(attach, false, false, slices.Clone(c.fates))}
					h.shared = true
					if bad := h.run(c.deeds); bad != "" {
						t.Errorf("%s\nsteps:\n  %s", bad, strings.Join(h.steps, "\n  "))
					}
				})
			})
		}
	}
}
