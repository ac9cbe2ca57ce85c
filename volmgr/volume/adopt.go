package volume

import (
	"cmp"
	"fmt"
	"slices"
)

// Note is what is written down of one claim while it is mounted, outside the
// state database: with it and the mount table the claim can be taken up again
// when the database is lost. It holds references to secrets, and no secret.
type Note struct {
	Format    int    `json:"format"` // NoteFormat
	NodeID    string `json:"node_id"`
	DataDir   string `json:"data_dir"`
	Boot      string `json:"boot"`
	Namespace uint64 `json:"ns"`
	Record    Record `json:"record"` // as it was then; its claims are in notes of their own
	Claim     Claim  `json:"claim"`
}

// NoteFormat is what this release writes and reads.
const NoteFormat = 1

// Check refuses a note that says less, or something else, than was written.
func (n Note) Check() error {
	if n.Format != NoteFormat {
		return Errorf(ErrInvalid, "format %d is unknown", n.Format)
	}
	for _, err := range []error{
		CheckID("volume id", n.Record.Volume.ID), CheckID("alloc id", n.Claim.Alloc), CheckPluginID(n.Record.Volume.PluginID),
		n.Record.with(n.Claim).Check(),
	} {
		if err != nil {
			return err
		}
	}
	if !n.Claim.mounted() {
		return Errorf(ErrInvalid, "the claim of %q was not mounted", n.Claim.Alloc)
	}
	return nil
}

// mounted reports whether the claim is one to write a note of.
func (c Claim) mounted() bool {
	return c.State == Taken && c.Published == Present && c.Mount != nil && (c.At == "" || c.Bound == Present && c.BoundMount != nil)
}

// Noted returns the record and claim to write a note of; ok is false where
// there is none to write now.
func Noted(r Record, alloc string) (n Note, ok bool) {
	c, ok := r.Claims[alloc]
	return Note{Format: NoteFormat, Record: r, Claim: c}, ok && c.mounted()
}

// Renoted names the allocs whose notes are not as they should be after a
// change: to be written, or dropped with their claims. The note of a claim that
// is on its way stays until it is gone.
func Renoted(before, now Record) []string {
	var allocs []string
	// What is owed, or out of sight, is nowhere to be seen after a loss.
	all := now.Volume.Expansion != before.Volume.Expansion || now.Node.Staged == Present && now.Node.Mount != before.Node.Mount ||
		!slices.Equal(now.Node.Owed, before.Node.Owed) || len(now.Node.Unseen) != len(before.Node.Unseen)
	for alloc, c := range now.Claims {
		was := before.Claims[alloc]
		if c.mounted() && (all || !was.mounted() || c.Mount != was.Mount || c.BoundMount != was.BoundMount) {
			allocs = append(allocs, alloc)
		}
	}
	for alloc := range before.Claims {
		if _, still := now.Claims[alloc]; !still {
			allocs = append(allocs, alloc)
		}
	}
	return allocs
}

// Gather makes one record of the notes of each volume, in the order of their
// ids. The newest note says how the volume was; what was noted of another
// registration of the same id is left out.
func Gather(notes []Note) []Record {
	byID := map[string]Record{}
	notes = slices.SortedFunc(slices.Values(notes), func(a, b Note) int {
		x, y := a.Record, b.Record
		return cmp.Or(y.Volume.RegisteredAt.Compare(x.Volume.RegisteredAt), cmp.Compare(y.Generation, x.Generation), cmp.Compare(a.Claim.Alloc, b.Claim.Alloc))
	})
	for _, n := range notes {
		r, ok := byID[n.Record.Volume.ID]
		if !ok {
			r = n.Record
			r.Claims = nil
		}
		if r.Same(n.Record) {
			byID[r.Volume.ID] = r.with(n.Claim)
		}
	}
	all := make([]Record, 0, len(byID))
	for _, r := range byID {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Record) int { return cmp.Compare(a.Volume.ID, b.Volume.ID) })
	return all
}

// Adopt rebuilds a record that the state database lost from what was noted and
// what is seen now; live is false if the notes are of another boot. A claim is
// adopted if its mount is the one that was noted: it has no owner but a mount that it
// lived by, counts as a writer, and ends by detach, or with that mount. If none of the targets is there and the
// staged mount is, all claims are adopted, because with none of them the volume
// would be unstaged. Else none is, and what may be left of the volume with
// nothing mounted is undone, as after a release: an attachment outlives a boot.
func Adopt(noted Record, o Observed, live bool) Record {
	r := noted
	r.Claims, r.Generation, r.Node.Watches = nil, 0, nil
	r.Volume.Expansion = Expansion{Node: r.Volume.Expansion.Node} // what was to be made larger may be since
	take := func(all bool) {
		for _, c := range noted.Ordered() {
			if all || o.Targets[c.Alloc].Is(c.Mount) || o.Binds[c.Alloc].Is(c.BoundMount) {
				if c.Adopted = true; c.Owner.Kind != OwnerMount { // which is what was looked at
					c.Owner = Owner{Kind: OwnerNone}
				}
				r = r.with(c)
			}
		}
	}
	if live {
		take(false)
		if len(r.Claims) == 0 && o.Staging.Is(noted.Node.Mount) {
			take(true)
		}
	}
	switch {
	case len(r.Claims) > 0:
		return r
	case live || noted.Node.Attached != Absent:
		return r.releasingAll(noted.Ordered(), o)
	default:
		r.Node = NodeSide{StagingPath: r.Node.StagingPath, Seq: r.Node.Seq}
		return r
	}
}

// releasingAll gives the record claims that are on their way out. No call is
// made for a path where something is mounted: it is not what was noted there.
func (r Record) releasingAll(claims []Claim, o Observed) Record {
	n := &r.Node
	n.Mount = nil
	switch {
	case o.Staging.Seen != SeenNothing:
		n.Staged, n.Uses.Stage = Absent, false
	case n.Staged != Absent:
		n.Staged = Unknown // a staging need not show as a mount
	}
	for _, c := range claims {
		c.Wanted, c.State, c.Owner = false, Unpublishing, Owner{Kind: OwnerNone}
		c.Published, c.Mount, c.At, c.Bound, c.BoundMount = Unknown, nil, "", Absent, nil
		if o.Targets[c.Alloc].Seen != SeenNothing {
			c.State, c.Published = NodeDetached, Absent
		}
		r = r.with(c)
	}
	return r
}

// adopted says in words that claims were adopted.
func (r Record) adopted() []string {
	n := 0
	for _, c := range r.Claims {
		if c.Adopted {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d of its claims were adopted from the mount table after the state database was lost: they have no owner (but a mount that they lived by), count as writers, and end by detach", n)}
}
