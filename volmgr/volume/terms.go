package volume

import "github.com/volagent/volagent/volmgr/call"

// Terms are the properties of a claim that its caller chooses. The request states them and the
// claim keeps them. A repeated request for the same claim must state the same terms. Terms is
// comparable.
//
// The alloc is the key of the claim and no term.
type Terms struct {
	ReadOnly bool `json:"read_only,omitempty"`

	// Mode may be incomplete in a request. Each empty part takes the mode in force, or else that of
	// the first listed capability that fits. The mode of a claim is complete.
	Mode call.Capability `json:"mode"`

	Owner Owner `json:"owner"`

	// At is the own directory, where the target is bind-mounted too. It is empty if the claim has
	// none.
	At string `json:"at,omitempty"`

	// AtFlags are the mount options of the bind mount only, as AtFlags joins them.
	AtFlags string `json:"at_flags,omitempty"`

	// AtWritable tells the agent not to guard At while the volume is not mounted there.
	AtWritable bool `json:"at_writable,omitempty"`

	// Own is the ownership that the volume's root gets. A default owner is no term.
	Own Ownership `json:"own,omitzero"`

	// Note is the operator's text about the claim. A request may leave it out.
	Note string `json:"note,omitempty"`
}

// differences returns the names of the terms in which a request differs from the claim's terms. A
// mode or a note that the request leaves empty does not differ. Without an own directory, its write
// protection does not differ either.
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
