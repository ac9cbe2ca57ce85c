package volume

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/volagent/volagent/volmgr/call"
)

// Check verifies the conditions that Admit, Detach and Apply keep true for every record. It is for
// tests and for debugging. The agent uses a record even if it fails this check.
func (r Record) Check() error {
	var errs []error
	unless := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}

	bad := r.unrecognised()
	unless(bad == "", "%s", bad)
	unless((r.Node.Mode != nil) == (len(r.Claims) > 0), "it has %d claims, and a mode is in force: %t", len(r.Claims), r.Node.Mode != nil)
	unless(r.Node.Mount == nil || r.Node.Staged != Absent, "it has a staged mount and is not staged")
	unless(r.Node.Staged == Absent || r.Node.StagingPath != "", "it is staged nowhere")
	e := r.Volume.Expansion
	unless(e.Want >= 0 && e.Node >= 0 && (!e.Offline || e.Want > 0), "its expansion makes no sense: %+v", e)
	unless(!e.Offline || r.Node.Attached == Absent && r.Node.Staged == Absent, "it is on this host, and is expanded only while it is not")

	seqs := map[uint64]string{}
	for _, c := range r.Claims {
		other, twice := seqs[c.Seq]
		unless(!twice, "the claims of %q and %q have one number", other, c.Alloc)
		seqs[c.Seq] = c.Alloc
		unless(c.Seq > 0 && c.Seq <= r.Node.Seq, "the claim of %q has number %d, and the newest has %d", c.Alloc, c.Seq, r.Node.Seq)
		unless(c.Target != "", "the claim of %q has no target", c.Alloc)
		unless(r.Node.Mode == nil || c.Mode == r.Node.Mode.Capability, "the claim of %q has another mode than the volume", c.Alloc)
		unless(c.Wanted == (c.State == Pending || c.State == Mounted), "the claim of %q is %s, and wanted: %t", c.Alloc, c.State, c.Wanted)
		unless(c.Published != Present || c.Mount != nil, "the claim of %q is published as no mount that is known", c.Alloc)
		unless(c.Bound != Present || c.At != "" && c.BoundMount != nil, "the claim of %q is bound as no mount that is known", c.Alloc)
		unless(c.Bound == Absent || c.At != "", "the claim of %q is bound nowhere", c.Alloc)
		done := c.State == NodeDetached || c.State == ControllerDetached
		unless(!done || c.Published == Absent && c.Bound == Absent, "the claim of %q is %s with something of it left", c.Alloc, c.State)
	}

	return errors.Join(errs...)
}

// unrecognised describes a state of the record that this release does not know, or returns "".
func (r Record) unrecognised() string {
	bad := func(what string, s Side) string { return fmt.Sprintf("%s has the unknown state %q", what, s) }
	oldest, what := Claim{}, ""
	for _, c := range r.Claims { // not sorted, because there may be thousands
		words := c.unrecognised()
		older := cmp.Or(cmp.Compare(c.Seq, oldest.Seq), cmp.Compare(c.Alloc, oldest.Alloc)) < 0
		first := what == "" || older
		if words != "" && first {
			oldest, what = c, words
		}
	}

	if what != "" {
		return what
	}

	for _, d := range r.Node.PendingCalls {
		if d.Kind != call.NodeUnpublish && d.Kind != call.NodeUnstage {
			return fmt.Sprintf("the unknown call %q is owed", d.Kind)
		}
	}

	switch n := r.Node; {
	case !n.Attached.Valid():
		return bad("attached", n.Attached)
	case !n.Staged.Valid():
		return bad("staged", n.Staged)
	default:
		return ""
	}
}

// unrecognised describes a state of the claim that this release does not know, or returns "".
func (c Claim) unrecognised() string {
	switch c.State {
	case Pending, Mounted, Unpublishing, NodeDetached, ControllerDetached:
	default:
		return fmt.Sprintf("claim of %q has the unknown state %q", c.Alloc, c.State)
	}

	switch {
	case c.Without.Check() != nil:
		return fmt.Sprintf("claim of %q is detached in the unknown way %q", c.Alloc, c.Without)
	case !c.Published.Valid():
		return fmt.Sprintf("published for %s has the unknown state %q", c.Alloc, c.Published)
	case !c.Bound.Valid():
		return fmt.Sprintf("bound for %s has the unknown state %q", c.Alloc, c.Bound)
	default:
		return ""
	}
}
