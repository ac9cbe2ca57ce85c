package volume

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/volagent/volagent/volmgr/plugin"
)

// Note describes one mounted claim. The agent stores it outside the state database. If the database
// is lost, the agent rebuilds the claim from the note and the mount table. A note contains
// references to secrets, but no secrets.
type Note struct {
	Format    int    `json:"format"` // version of the format; see NoteFormat
	NodeID    string `json:"node_id"`
	DataDir   string `json:"data_dir"`
	Boot      string `json:"boot"`
	Namespace uint64 `json:"ns"`
	Record    Record `json:"record"` // record at the time of the note, without its claims
	Claim     Claim  `json:"claim"`
}

// NoteFormat is the note format that this release writes and reads.
const NoteFormat = 1

// Check returns an error if a note is incomplete or contains a value that the agent never writes.
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

// mounted reports whether the claim has all its mounts. Only a mounted claim needs a note.
func (c Claim) mounted() bool {
	return c.State == Mounted && c.Published == Present && c.Mount != nil && (c.At == "" || c.Bound == Present && c.BoundMount != nil)
}

// Noted returns the note for a claim. If the claim needs no note at present, ok is false.
func Noted(r Record, alloc string) (n Note, ok bool) {
	c, ok := r.Claims[alloc]
	return Note{Format: NoteFormat, Record: r, Claim: c}, ok && c.mounted()
}

// Renoted returns the allocs whose notes are out of date after a change of the record. The agent
// must write these notes again, or remove them if their claims have ended. The note of a claim that
// is being detached remains until the claim has ended.
func Renoted(before, now Record) []string {
	var allocs []string

	// Every note must contain the pending calls and the lazy unmounts, because nothing on the host
	// shows them.
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

// Gather returns one record for each volume in the notes, sorted by volume id. The newest note
// determines the state of the volume. Gather ignores notes from an earlier registration of the same
// id.
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

	return slices.SortedFunc(maps.Values(byID), func(a, b Record) int { return cmp.Compare(a.Volume.ID, b.Volume.ID) })
}

// Adopt rebuilds a record from notes and from the present mounts after the loss of the state
// database. The parameter live is false if the notes are from another boot.
//
// Adopt keeps a claim if the present mount is the one in its note. An adopted claim counts as a
// writer. It usually loses its owner, and a user must detach it. If the owner is a mount, the claim
// keeps its owner, and also ends when that mount ends.
//
// If the staging path is mounted but no target is mounted, Adopt keeps all claims, because the
// agent would unstage a volume without claims. If neither is mounted, Adopt keeps no claim. The
// agent then undoes the sides that may exist without a mount, as after a detach. For example, the
// storage remains connected after a reboot.
func Adopt(noted Record, o Observed, live bool) Record {
	r := doubtHold(noted)
	r.Claims, r.Generation, r.Node.Watches = nil, 0, nil
	r.Volume.Expansion = Expansion{Node: r.Volume.Expansion.Node} // the controller may have finished the expansion since the note
	take := func(all bool) {
		for _, c := range noted.Ordered() {
			if all || o.Targets[c.Alloc].Is(c.Mount) || o.Binds[c.Alloc].Is(c.BoundMount) {
				if c.Adopted = true; c.Owner.Kind != OwnerMount { // if the owner is a mount, the condition above has found it
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
		return detachAll(r, noted.Ordered(), o)
	default:
		r.Node = NodeSide{StagingPath: r.Node.StagingPath, Seq: r.Node.Seq, Hold: r.Node.Hold}
		return r
	}
}

// detachAll returns the record with the given claims marked as being detached. If a path has a
// mount, it is not the mount in the note, so the agent must not call the plugin for this path.
func detachAll(r Record, claims []Claim, o Observed) Record {
	n := &r.Node
	n.Mount = nil

	switch {
	case o.Staging.Seen != SeenNothing:
		n.Staged, n.Uses.Stage = Absent, false
	case n.Staged != Absent:
		n.Staged = Unknown // the volume may be staged without a mount
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

// adoptedNote returns a sentence about the number of adopted claims, or nil if there are none.
func adoptedNote(r Record) []string {
	n := 0
	for _, c := range r.Claims {
		if c.Adopted {
			n++
		}
	}

	if n == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d of its claims were adopted from the mount table after the state database was lost. They count as writers and end by a detach. They have no owner, except a mount", n)}
}

// Restored returns the record of a backup in the form in which the agent must use it on the host of
// this backup. The backup may be old. If the mount table does not show a side, the side becomes
// unknown, because the agent may have made or undone it after the backup.
//
// A claim counts as being detached if its owner has ended or belongs to another boot. If the host
// is being drained, a claim whose owner cannot end also counts as being detached.
func Restored(r Record, booted, draining bool, owners Owners) Record {
	after := Crashed
	if booted {
		after = Rebooted
	}

	r, _ = Loaded(r, after, false)
	r = doubtHold(r)
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

// Differences returns the fields in which two registrations of a storage volume differ, with both
// values. For secrets, it only says that they differ. It ignores the time of registration.
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

// fieldsOf returns the fields of a volume in the form in which they are stored.
func fieldsOf(v Volume) map[string]json.RawMessage {
	fields := map[string]json.RawMessage{}
	if raw, err := json.Marshal(v); err == nil { // encoding a volume cannot fail
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
// lost. The volume must have no mounts, and its claims must have no notes. The copy may be minutes
// old: its claims may have ended, and other claims may have begun and ended since.
//
// Copied keeps the registration and the pending calls. It marks all sides to be undone, as after a
// detach. If the plugin has ControllerPublishVolume, the connection becomes unknown. The parameter
// booted is set if the copy is from another boot. In this case, only the connection may still
// exist.
func Copied(r Record, o Observed, info plugin.Info, booted bool) Record {
	r = doubtHold(r)
	claims, n := r.Ordered(), &r.Node
	r.Claims, r.Generation, n.Watches, n.Proven = nil, 0, nil, false
	r.Volume.Expansion = Expansion{Node: r.Volume.Expansion.Node} // the controller may have finished the expansion since the copy
	mayAttach := info.Caps.Attach && r.Volume.ExternalID != ""
	if mayAttach || n.Attached != Absent {
		n.Attached, n.Uses.Attach = Unknown, true
	}
	n.NodeID = cmp.Or(n.NodeID, info.NodeID)
	if booted {
		return NextBoot(r)
	}

	return detachAll(r, claims, o)
}

// PathsOfOtherMounts returns the paths of the record that have a mount other than the recorded one.
func PathsOfOtherMounts(r Record, o Observed) (paths []string) {
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
