package volume

import "github.com/volagent/volagent/volmgr/call"

// Terms holds the properties of a claim that its caller chooses. The request states them, and the
// claim keeps them. A repeated request for the same claim must state the same terms. Terms is
// comparable.
//
// The alloc is not a term, because it is the key of the claim.
type Terms struct {
	ReadOnly bool `json:"read_only,omitempty"`

	// Mode may be incomplete in a request. The agent fills each empty part from the mode in force,
	// or else from the first listed capability that fits. The mode of a claim is complete.
	Mode call.Capability `json:"mode"`

	Owner Owner `json:"owner"`

	// At is the own directory, on which the agent bind-mounts the target. It is empty if the claim
	// has none.
	At string `json:"at,omitempty"`

	// AtFlags holds the mount options of the bind mount at At, in the form that AtFlags returns.
	AtFlags string `json:"at_flags,omitempty"`

	// AtWritable is set if the agent must not guard At while the volume is not mounted there.
	AtWritable bool `json:"at_writable,omitempty"`

	// Own is the requested ownership of the volume's root. A default owner is not a term.
	Own Ownership `json:"own,omitzero"`

	// Note is the operator's text about the claim. A request may omit it.
	Note string `json:"note,omitempty"`
}

// differences returns the names of the terms in which a request differs from the claim. An omitted
// mode or note does not count as different. If the claim has no own directory, its write protection
// does not count either.
func (t Terms) differences(asked Terms) []string {
	var names []string
	note := func(name string, differs bool) {
		if differs {
			names = append(names, name)
		}
	}

	note("read-only", asked.ReadOnly != t.ReadOnly)
	note("access mode", asked.Mode.Access != "" && asked.Mode.Access != t.Mode.Access)
	note("attachment mode", asked.Mode.Attachment != "" && asked.Mode.Attachment != t.Mode.Attachment)
	note("directory", asked.At != t.At)
	note("write protection of the directory", asked.At != "" && asked.AtWritable != t.AtWritable)
	note("owner", asked.Owner != t.Owner)
	note("list of mount options at "+t.At, asked.AtFlags != t.AtFlags)
	note("uid, gid or mode", asked.Own.asked() != t.Own.asked())
	note("note", asked.Note != "" && asked.Note != t.Note)
	return names
}
