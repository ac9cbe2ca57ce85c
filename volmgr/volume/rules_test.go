package volume_test

import (
	"fmt"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// forgotten describes a side that exists or may still appear, although the record does not show it.
// It returns "" if the record shows all such sides.
func forgotten(v variant, s state) string {
	if s.debt.mem.Leftover { // no call was made for the new record yet
		return unknown(v, s.debt.mem, s.w)
	}
	return unknown(v, s.mem, s.w)
}

// detachKnown reports whether the next agent would learn from the stored record that a
// ControllerUnpublishVolume may be in progress.
func detachKnown(disk volume.Record) bool {
	n := disk.Node
	if len(disk.Claims) == 0 || n.Attached == volume.Failed || n.Attached == volume.Unknown && !watchesAttachment(disk, false) {
		return true
	}
	for _, c := range disk.Claims {
		if c.State == volume.NodeDetached || c.State == volume.ControllerDetached {
			return true
		}
	}
	return false
}

func unknown(v variant, r volume.Record, w world) string {
	if bad := forgottenHold(r, w); bad != "" {
		return bad
	}
	switch {
	case w.attached && r.Node.Attached == volume.Absent:
		return "the record forgot an attachment"
	case w.late&lateAttach != 0 && !watchesAttachment(r, false):
		return "nobody watches for the late effect of an attach"
	case w.staged && w.stage.id == 0 && hasPendingCall(r, call.NodeUnstage, stagingPath): // the mount is gone, and a pending unstage tells the plugin
	case (w.stage.id != 0 || w.staged) && r.Node.Staged == volume.Absent && !watches(r, stagingPath):
		return "the record forgot a staged mount"
	case w.late&lateStage != 0 && !watches(r, stagingPath):
		return "nobody watches for the late effect of a stage"
	}
	verified := !v.shared || r.Node.Hold.State == volume.Present && r.Node.Attached == volume.Present // otherwise, another host may have detached the volume
	for i, alloc := range allocs {
		c := r.Claims[alloc]
		switch {
		case w.target[i].id != 0 && c.Published == volume.Absent && !watches(r, targets[i]):
			return fmt.Sprintf("the record forgot the mount of %s", alloc)
		case w.told[i] && c.Published == volume.Absent && !watches(r, targets[i]) && !hasPendingCall(r, call.NodeUnpublish, targets[i]):
			return fmt.Sprintf("the record forgot that the plugin has it published for %s", alloc)
		case w.late&latePublish(i) != 0 && !watches(r, targets[i]):
			return fmt.Sprintf("nobody watches for the late effect of the publish for %s", alloc)
		case w.bound[i].id != 0 && c.Bound == volume.Absent:
			return fmt.Sprintf("the record forgot the bind of %s", alloc)
		case v.attach && verified && !w.attached && c.State == volume.Mounted && c.Wanted && c.Published == volume.Present:
			return fmt.Sprintf("the claim of %s is mounted, and the storage is detached", alloc)
		case c.State == volume.Mounted && c.Wanted && c.Mode.Access == "":
			return fmt.Sprintf("the claim of %s lost its mode", alloc)
		}
	}
	if len(r.Claims) > 0 && r.Node.Mode == nil {
		return "a volume with claims has no mode"
	}
	return ""
}

// unsettled checks a state in which Next has returned Settled. It describes a side that is missing
// or superfluous, or returns "".
func unsettled(v variant, s state) string {
	r, w := s.mem, s.w
	wanted := false
	for i, alloc := range allocs {
		c, ok := r.Claims[alloc]
		if !ok || !c.Wanted {
			if ok {
				return fmt.Sprintf("settled with the released claim of %s", alloc)
			}
			if w.target[i].id != 0 || w.bound[i].id != 0 || w.told[i] {
				return fmt.Sprintf("settled with a mount of %s, who has no claim", alloc)
			}
			continue
		}
		wanted = true
		if c.State != volume.Mounted {
			return fmt.Sprintf("settled with the claim of %s %s", alloc, c.State)
		}
		if bad := incomplete(w, i, c); bad != "" {
			return fmt.Sprintf("settled, and of the claim of %s %s", alloc, bad)
		}
	}
	if bad := unsettledHold(v, r, w, wanted); bad != "" {
		return bad
	}
	switch x := r.Volume.Expansion; {
	case x.Want > 0:
		return "settled with an expansion that the controller has not answered"
	case r.Volume.Capacity == larger && !w.grown || w.filled && !w.grown:
		return "settled with a size that the storage has not"
	case wanted && r.Volume.Capacity == larger && !w.filled && x.Refused.Step != call.NodeExpand:
		return "settled with a mount that is smaller than the storage"
	case !wanted && (w.attached || w.staged || w.mounted()):
		return "settled, and something is left of a volume that nobody wants"
	case wanted && v.attach && !w.attached:
		return "settled without the attachment"
	case wanted && v.stage && !w.staged && !s.lied:
		return "settled without the staging"
	case wanted && w.late&lateDetach != 0, !wanted && w.late&lateAttach != 0:
		return "settled while a late effect on the attachment may come"
	case w.late&lateMounts != 0 || w.late&lateUnstage != 0 && w.staged:
		return "settled while a late effect may come"
	}
	return ""
}

// stays checks a state in which Next takes no more steps because the host goes down. It describes a
// side that is still on the host, or returns "".
func stays(s state) string {
	switch {
	case !s.down:
		return "it waits for the end of a host that is not going down"
	case s.mem.OnHost():
		return "nothing more is done, and by its record the volume is on the host"
	case s.w.staged || s.w.mounted():
		return "nothing more is done, and the volume is mounted"
	}
	return ""
}

// incomplete describes a side that a mounted claim lacks. It returns "" if the claim lacks no side.
func incomplete(w world, i int, c volume.Claim) string {
	switch t, b := w.target[i], w.bound[i]; {
	case t.id == 0 || t.dead || t.bare || c.Mount == nil || *c.Mount != *identity(t):
		return "the mount is not as recorded"
	case c.Own.Asked() && !w.owned:
		return "the owner is not the one that was asked for"
	case c.At != "" && (b.id == 0 || b.dead || c.BoundMount == nil || *c.BoundMount != *identity(b)):
		return "the bind is not as recorded"
	}
	return ""
}

// enough is the maximum number of steps after which a volume must be in its wanted state.
const enough = 40

// settles runs further steps without faults. It does so twice: after every late effect has
// happened, and without any late effect. It says why the volume does not reach its wanted state, or
// returns "".
func (x *explorer) settles(s state) string {
	s.parked, s.debt.parked, s.w.unseen = 0, 0, false
	landed := s
	s.w.late.each(func(l late) { landed.w.land(x.v, l, landed.fresh()) })
	s.w.late, landed.w.late = 0, 0
	if bad := x.rests(s); bad != "" {
		return bad
	}
	if s.down { // after the next boot, the agent must mount the wanted claims again
		if bad := x.rests(s.shut()); bad != "" {
			return "after the next boot: " + bad
		}
	}
	if landed.w != s.w {
		if bad := x.rests(landed); bad != "" {
			return "after its late effect: " + bad
		}
	}
	return ""
}

func (x *explorer) rests(s state) string {
	if s.mem.Node.Hold.Unverified {
		s = s.compared()
	}
	var passed []key
	var steps []string
	for range enough {
		k := s.future()
		if x.calm[k] {
			break
		}
		passed = append(passed, k)
		if s.debt.mem.Leftover {
			s = s.swap() // the agent makes the pending calls of the deregistered record first
		}
		a := volume.Next(s.mem, s.observe(x.v, bothUp, allOver, -1))
		steps = append(steps, string(a.Kind)+" "+a.Alloc)
		switch {
		case a.Kind == volume.Settled:
			if bad := unsettled(x.v, s); bad != "" {
				return bad
			}
			if s.swapped {
				s = s.paid()
				continue
			}
			x.calm[k] = true
			continue
		case a.Kind == volume.Wait && a.Cause == volume.CauseOwner && s.behind:
			s = s.reap(true)
			continue
		case a.Kind == volume.Wait && a.Cause == volume.CauseDown:
			if bad := stays(s); bad != "" {
				return bad
			}
			x.calm[k] = true
			s = s.shut() // continues after the next boot
			continue
		case a.Kind == volume.Wait && s.parked != 0:
			s.parked, s.w.unseen = 0, false
			if s.w.hold == other {
				s.w.hold = none // the other host gives up its hold
			}
			s = s.straight()
			continue
		case a.Kind == volume.Wait:
			return fmt.Sprintf("with no more faults it waits for ever for %q: %s, after %q", a.Cause, a.Reason, steps)
		}
		if bad := s.w.broken(x.v, s.mem, a); bad != "" {
			return fmt.Sprintf("with no more faults, %s: %s, after %q", a.Kind, bad, steps)
		}
		if x.v.shared && controls(a.Kind) && s.w.hold != mine {
			s.mem, _ = volume.LoseHold(s.mem) // the store refuses to announce the call
		}
		s = s.save(a, s.w.do(x.v, a, ok, s.fresh())).straight()
	}
	if !x.calm[s.future()] {
		return fmt.Sprintf("it does not come to rest with no more faults: %q", steps)
	}
	for _, k := range passed {
		x.calm[k] = true
	}
	return ""
}
