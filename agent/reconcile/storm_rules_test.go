package reconcile_test

import (
	"fmt"
	"slices"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// rule returns a description of the rule that a step would break in the current state, or "". The
// caller holds mu.
func (s *storm) rule(r volume.Record, a volume.Action) string {
	id := r.Volume.ID
	if _, owed := s.mem[leftoverKeyOf(r)]; owed && !r.Leftover && a.RPC() {
		return "what a forced deregister left is not undone"
	}
	if why := s.holdRule(r, a); why != "" {
		return why
	}
	detaching := s.cloud[fmt.Sprint(call.ControllerUnpublish, id)] > 0
	switch a.Kind {
	case call.ControllerExpand, call.NodeExpand:
		return s.mayExpand(id, a)
	case call.ControllerPublish:
		if detaching {
			return "a call may still detach it"
		}
	case volume.Bind:
		if p := s.mounts[targetOf(id, a.Alloc)]; p.id == 0 || p.dead || p.bare {
			return "the target is not mounted"
		}
	case volume.Free:
		if c := r.Claims[a.Alloc]; s.mounts[c.Target].id != 0 && !watching(r, c.Target) || c.At != "" && s.mounts[c.At].id != 0 {
			return "it is still mounted"
		}
	case call.NodeStage:
		if s.attach && !s.done["attached "+id] && !s.keys[id].unseen {
			return "it is not attached"
		}
		if a.Path != stagingOf(id) {
			return "the staging path is another: " + a.Path
		}
	case call.NodePublish:
		if s.attach && !s.done["attached "+id] && !s.keys[id].unseen {
			return "it is not attached"
		}
		if s.stage && r.Node.Staged != volume.Present {
			return "the record says that it is not staged"
		}
		if a.Path != targetOf(id, a.Alloc) {
			return "the target is another: " + a.Path
		}
		if s.undoing[fmt.Sprint(s.life, stagingOf(id))] > 0 {
			return "an unstage is still at work"
		}
	case call.NodeUnstage:
		if left := s.under(id, true); len(left) > 0 {
			return fmt.Sprint("it is still published at ", left)
		}
	case call.ControllerUnpublish:
		if left := s.under(id, false); len(left) > 0 || s.done["staged "+id] {
			return fmt.Sprint("it is still mounted at ", left)
		}
		if s.pending[fmt.Sprint(s.life, id)] > 0 {
			return "a call may still mount it"
		}
	}
	return ""
}

func watching(r volume.Record, path string) bool {
	return slices.ContainsFunc(r.Node.Watches, func(w volume.Watch) bool { return w.Path == path })
}

// forgotten describes a mount or attachment that exists but appears in no record. Leftover records
// count as records. It returns "" if there is none.
func (s *storm) forgotten(ids, allocs []string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		known := []volume.Record{s.mem[id], s.mem[leftoverKeyOf(volume.Record{Volume: stormVolume(id, s.shared)})]}
		if lost := s.forgottenHold(id, known); lost != "" {
			return lost
		}
		knows := func(test func(volume.Record) bool) bool { return slices.ContainsFunc(known, test) }
		if s.done["attached "+id] && !knows(func(r volume.Record) bool { return r.Node.Attached != volume.Absent }) {
			return fmt.Sprintf("the attachment of %q", id)
		}
		inHand := s.running[fmt.Sprint(s.agent, id)] > 0
		if s.cloud[fmt.Sprint(call.ControllerPublish, id)] > 0 && !inHand && !knows(func(r volume.Record) bool {
			return r.Node.Attached != volume.Absent || slices.Contains(r.Node.Watches, volume.Watch{Attachment: true})
		}) {
			return fmt.Sprintf("the late attachment of %q", id)
		}
		if s.mounts[stagingOf(id)].id != 0 && !knows(func(r volume.Record) bool {
			return r.Node.Staged != volume.Absent || watching(r, stagingOf(id))
		}) {
			return fmt.Sprintf("the staging of %q", id)
		}
		for _, alloc := range allocs {
			path := targetOf(id, alloc)
			if s.mounts[path].id != 0 && !knows(func(r volume.Record) bool {
				c, ok := r.Claims[alloc]
				return ok && c.Published != volume.Absent || watching(r, path)
			}) {
				return fmt.Sprintf("the mount of %q for %q", id, alloc)
			}
		}
	}
	return ""
}

// unsettled describes a difference between the host and the claims. The test calls it some time
// after all faults have stopped.
func (s *storm) unsettled(ids []string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	explained := map[string]bool{}
	for _, id := range ids {
		r := s.mem[id]
		if debt, ok := s.mem[leftoverKeyOf(r)]; ok {
			return fmt.Sprintf("what a forced deregister left of %q is not undone: %+v", id, debt.Node)
		}
		for alloc, c := range r.Claims {
			explained[c.Target], explained[c.At] = true, true
			t, b := s.mounts[c.Target], s.mounts[c.At]
			switch {
			case !c.Wanted:
				return fmt.Sprintf("the claim of %q on %q is not gone: %+v", alloc, id, c)
			case c.State != volume.Mounted:
				return fmt.Sprintf("the claim of %q on %q is %s", alloc, id, c.State)
			case t.id == 0 || t.dead || t.bare || c.Mount == nil || c.Mount.ID != t.id:
				return fmt.Sprintf("the claim of %q on %q is taken, and mounted is %+v", alloc, id, t)
			case c.At != "" && (b.id == 0 || b.dead || c.BoundMount == nil || c.BoundMount.ID != b.id):
				return fmt.Sprintf("the claim of %q on %q is taken, and bound is %+v", alloc, id, b)
			}
		}
		held := len(r.Claims) > 0
		if bad := s.unsettledHold(r, held); bad != "" {
			return bad
		}
		if bad := s.notExpanded(r, held); bad != "" {
			return bad
		}
		if explained[stagingOf(id)] = held; !held && r.Held() {
			return fmt.Sprintf("nobody claims %q, and it is held: %+v", id, r.Node)
		}
		if !held && (s.done["attached "+id] || s.done["staged "+id]) || held && s.attach && !s.done["attached "+id] {
			return fmt.Sprintf("%q is claimed: %v, attached: %v, staged: %v", id, held, s.done["attached "+id], s.done["staged "+id])
		}
	}
	for path := range s.mounts {
		if !explained[path] {
			return fmt.Sprintf("%s is left mounted", path)
		}
	}
	return ""
}
