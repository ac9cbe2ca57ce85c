package explore_test

import (
	"fmt"
	"strings"

	"github.com/volagent/volagent/volmgr/shared"
)

// check returns the rule that a state violates, or "".
func (s *state) check() string {
	if s.bad != "" {
		return s.bad
	}
	if s.writes(0) && s.writes(1) {
		return "I1: both hosts can write"
	}
	for x, name := range names {
		settled := s.node(x).Value.Era == s.meta().Era() // before that, a restored store may lack the hold
		if s.writes(x) && settled && !s.store.has(shared.HoldKey(name, id)) {
			return "I1: host " + name + " can write without a hold"
		}
	}
	return ""
}

// unclean says why a state is not clean, or returns "". In a clean state, the holds, the attachments and
// the mounts are the same, and a host that wants the volume has it.
func (s *state) unclean(v variant, all bool) string {
	if c := get[shared.Call](s.store, shared.CallKey(id)); c.Exists() {
		return "a call is announced"
	}
	switch {
	case s.store.has(shared.MoveKey(id)):
		return "the volume is being moved"
	case s.meta().Suspended != "":
		return "the cluster is suspended"
	case len(get[shared.Use](s.store, shared.UseKey(id)).Value.Rivals) > 0:
		return "two hosts use the volume"
	}

	holder, wanted := -1, false
	for x, name := range names {
		h := &s.hosts[x]
		n := s.node(x).Value
		held := s.store.has(shared.HoldKey(name, id))
		if held {
			holder = x
		}
		wanted = wanted || h.wants() && !h.off
		switch {
		case h.off && !all && (!s.attached[x] || held || s.stray[x] && !v.lists):
			continue
		case s.attaches && held && !s.attached[x] && s.stray[x] && !v.lists:
			// No host can find out that a paused agent has detached the volume late.
		case s.attaches && s.attached[x] != held && (v.lists || held):
			return fmt.Sprintf("host %s is attached: %t, and has a hold: %t", name, s.attached[x], held)
		case s.attaches && s.attached[x] && !held && !s.stray[x]:
			return fmt.Sprintf("host %s is attached without a hold, although no paused agent has sent a call", name)
		case !h.up || !h.registered || n.State != shared.NodeReady:
			return fmt.Sprintf("host %s is %s, and not registered", name, n.State)
		case len(n.Quarantined) > 0:
			return fmt.Sprintf("host %s shows a lost volume", name)
		case h.mounted() != held:
			return fmt.Sprintf("host %s has the volume mounted: %t, and has a hold: %t", name, h.mounted(), held)
		case held && !h.wants():
			return "host " + name + " holds the volume, and does not want it"
		}
	}
	switch {
	case wanted && holder < 0:
		return "a host wants the volume, and none has it"
	case wanted && s.hosts[holder].off && !all:
		return "a host wants the volume, and a host without power has it"
	}
	return ""
}

// String describes a state for people.
func (s *state) String() string {
	var b strings.Builder
	for _, kv := range s.store.kvs {
		fmt.Fprintf(&b, "  %s = %s (created %d, changed %d)\n", kv.Key, kv.Value, kv.Create, kv.Mod)
	}
	for x, name := range names {
		h := &s.hosts[x]
		fmt.Fprintf(&b, "  host %s: off %t, up %t, registered %t, incarnation %d, attached %t, staged %t, published %t, admitted %d\n",
			name, h.off, h.up, h.registered, h.who.Incarnation, s.attached[x], h.staged, h.target, h.admitted)
		fmt.Fprintf(&b, "    record: %+v\n    claims: %+v\n    step: %+v\n    clean: %+v\n    fence: %+v\n", h.rec.Node, h.rec.Claims, h.step, h.clean, h.fence)
		for i, one := range h.sent {
			if one != nil {
				fmt.Fprintf(&b, "    sent by %d: done %d, %+v\n", i, one.done, one.txn)
			}
		}
	}
	fmt.Fprintf(&b, "  late: %+v, net: %+v, left: %+v", s.late, s.net, s.left)
	return b.String()
}
