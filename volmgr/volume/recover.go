package volume

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Note describes one mounted claim, and is stored outside the state database. If the database is
// lost, the agent recovers the claim from the note and the mount table. A note holds references to
// secrets, but no secrets.
type Note struct {
	Format    int    `json:"format"` // NoteFormat
	NodeID    string `json:"node_id"`
	DataDir   string `json:"data_dir"`
	Boot      string `json:"boot"`
	Namespace uint64 `json:"ns"`
	Record    Record `json:"record"` // as it was then; each claim has its own note
	Claim     Claim  `json:"claim"`
}

// NoteFormat is the format that this release writes and reads.
const NoteFormat = 1

// Check refuses a note that is incomplete or holds values that the agent does not write.
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

// mounted reports whether the claim has all its mounts, so that it needs a note.
func (c Claim) mounted() bool {
	return c.State == Mounted && c.Published == Present && c.Mount != nil && (c.At == "" || c.Bound == Present && c.BoundMount != nil)
}

// Noted returns the note to write for a claim. ok is false if there is none to write now.
func Noted(r Record, alloc string) (n Note, ok bool) {
	c, ok := r.Claims[alloc]
	return Note{Format: NoteFormat, Record: r, Claim: c}, ok && c.mounted()
}

// Renoted returns the allocs whose notes are out of date after a change. The notes are then written
// again, or removed if their claims have ended. The note of a claim that is being detached stays
// until the claim has ended.
func Renoted(before, now Record) []string {
	var allocs []string

	// After a loss of the database, the host shows no sign of pending calls or lazy unmounts.
	all := now.Volume.Expansion != before.Volume.Expansion || now.Node.Staged == Present && now.Node.Mount != before.Node.Mount ||
		!slices.Equal(now.Node.PendingCalls, before.Node.PendingCalls) || len(now.Node.Unseen) != len(before.Node.Unseen)
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

// Gather builds one record per volume from the notes, in the order of the volume ids. The newest
// note decides the state of the volume. Notes of another registration of the same id are left out.
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

// Adopt rebuilds a record that the state database lost, from the notes and from the mounts that are
// there now. live is false if the notes are from another boot.
//
// A claim is adopted if its mount is the one in its note. An adopted claim counts as a writer and
// ends by a detach. It keeps no owner other than a mount. If its owner is a mount, it also ends
// with that mount.
//
// If no target is mounted but the staging path is, all claims are adopted. Without any claim, the
// volume would be unstaged. Otherwise no claim is adopted. The agent then undoes the parts of the
// volume that may remain without a mount, as after a detach. For example, the storage stays
// connected over a reboot.
func Adopt(noted Record, o Observed, live bool) Record {
	r := noted
	r.Claims, r.Generation, r.Node.Watches = nil, 0, nil
	r.Volume.Expansion = Expansion{Node: r.Volume.Expansion.Node} // the expansion may have finished since
	take := func(all bool) {
		for _, c := range noted.Ordered() {
			if all || o.Targets[c.Alloc].Is(c.Mount) || o.Binds[c.Alloc].Is(c.BoundMount) {
				if c.Adopted = true; c.Owner.Kind != OwnerMount { // a mount that is the owner has just been checked
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
		return r.detachingAll(noted.Ordered(), o)
	default:
		r.Node = NodeSide{StagingPath: r.Node.StagingPath, Seq: r.Node.Seq}
		return r
	}
}

// detachingAll returns the record with the given claims as being detached. No call is made for a
// path with a mount, because it is not the mount in the note.
func (r Record) detachingAll(claims []Claim, o Observed) Record {
	n := &r.Node
	n.Mount = nil

	switch {
	case o.Staging.Seen != SeenNothing:
		n.Staged, n.Uses.Stage = Absent, false
	case n.Staged != Absent:
		n.Staged = Unknown // a staging need not have a mount
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

// adopted returns a sentence about adopted claims, if there are any.
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

// Restored returns the record of a backup as it must be read on the host of that backup. The backup
// may be old. A side that the mount table does not show may have been made or undone since, so it
// is unknown and will be made, or undone, again.
//
// A claim counts as being detached if its owner is gone or belongs to another boot. If the host is
// being drained, a claim without an owner counts as being detached too.
func Restored(r Record, booted, draining bool, owners Owners) Record {
	after := Crashed
	if booted {
		after = Rebooted
	}

	r, _ = Loaded(r, after, false)
	n := &r.Node
	if n.Attached == Present {
		n.Attached = Unknown
	}
	if n.Staged == Present && n.Mount == nil {
		n.Staged = Unknown
	}

	n.Proven = false
	r = Past(r, owners)
	for _, c := range r.Ordered() {
		if draining && c.Wanted && !c.Owner.Mortal() {
			r = r.with(c.unwanted())
		}
	}

	return r
}

// Differences returns the fields in which two registrations of one storage volume differ, with both
// values. For secrets, it says only that they differ. It ignores the time of registration.
func Differences(here, there Volume) []string {
	a, b := fieldsOf(here), fieldsOf(there)
	names := maps.Clone(a)
	maps.Copy(names, b)

	var words []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		switch {
		case name == "registered_at", string(a[name]) == string(b[name]):
		case name == "secrets":
			words = append(words, "its secrets differ")
		default:
			words = append(words, fmt.Sprintf("%s is %s here and %s in the backup", name, orNothing(a[name]), orNothing(b[name])))
		}
	}

	return words
}

// fieldsOf returns a volume's fields as they are stored.
func fieldsOf(v Volume) map[string]json.RawMessage {
	fields := map[string]json.RawMessage{}
	if raw, err := json.Marshal(v); err == nil { // a volume can always be encoded
		_ = json.Unmarshal(raw, &fields)
	}
	return fields
}

func orNothing(raw json.RawMessage) string {
	if raw == nil {
		return "not set"
	}
	return string(raw)
}

// Copied prepares a record from an automatic copy of the state database, after the database was
// lost. It is for a record without a proven claim and without a mount. The copy may be minutes old:
// its claims may have ended, and others may have come and gone.
//
// Copied keeps the registration and the pending calls. It marks the rest to be undone, as after a
// detach. If the plugin has ControllerPublishVolume, it is unknown whether the volume is connected.
// booted means that the copy is from another boot. Only a connection survives a reboot.
func Copied(r Record, o Observed, info PluginInfo, booted bool) Record {
	claims, n := r.Ordered(), &r.Node
	r.Claims, r.Generation, n.Watches, n.Proven = nil, 0, nil, false
	r.Volume.Expansion = Expansion{Node: r.Volume.Expansion.Node} // the expansion may have finished since
	mayAttach := info.Caps.Attach && r.Volume.ExternalID != ""
	if mayAttach || n.Attached != Absent {
		n.Attached, n.Uses.Attach = Unknown, true
	}
	if n.NodeID == "" {
		n.NodeID = info.NodeID
	}
	if booted {
		return NextBoot(r)
	}

	return r.detachingAll(claims, o)
}

// Strangers returns the paths of the record at which something other than the recorded mount is
// mounted.
func (r Record) Strangers(o Observed) (paths []string) {
	note := func(path string, s Sight, m *MountIdentity) {
		if path != "" && s.Seen != SeenNothing && !s.Is(m) {
			paths = append(paths, path)
		}
	}

	note(r.Node.StagingPath, o.Staging, r.Node.Mount)
	for _, c := range r.Ordered() {
		note(c.Target, o.Targets[c.Alloc], c.Mount)
		note(c.At, o.Binds[c.Alloc], c.BoundMount)
	}

	return paths
}
