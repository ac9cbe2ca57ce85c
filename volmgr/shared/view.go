package shared

import (
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// HostState is the state of a host as people see it. It combines the recorded state with the lease.
type HostState string

// These are the states of a host that a NodeState cannot express. All other states have the same
// name as the NodeState.
const (
	HostReady    = HostState(NodeReady)
	HostDraining = HostState(NodeDraining)
	HostAway     = HostState(NodeAway) // the agent was stopped in order and is expected back
	HostGone     = HostState("gone")   // the lease of the host has ended, and the host has not said why
)

// StateOf returns the state of a host. The argument alive reports whether the lease of the host
// exists.
func StateOf(n Node, alive bool, now time.Time) HostState {
	switch {
	case n.State == NodeFencing || n.State == NodeFenced:
		return HostState(n.State)
	case alive:
		return HostState(n.State)
	case (n.State == NodeAway || n.State == NodeDraining) && now.Before(n.Until):
		return HostAway
	default:
		return HostGone
	}
}

// HoldView is a hold as people see it.
type HoldView struct {
	Volume string
	Host   string
	State  HostState // of the host; empty if it was not read

	Access     call.AccessMode
	Reader     bool
	Attachment Attachment // empty if the volume needs none, or if it was not read
	NodeID     string
	Operation  string
	Since      time.Time
	Token      volume.Token // zero if it was not read

	// Told is the last status of the volume that the host has written. It is nil if the host has
	// written none.
	Told *VolumeStatus
}

// CallView is a controller call in flight as people see it.
type CallView struct {
	Volume string
	Call
}

// VolumeView is a shared volume as people see it.
type VolumeView struct {
	Definition
	Holds []HoldView // in ascending order of the hosts
	Call  *CallView  // nil if no call is in flight, or if it was not read

	// TakenOver describes the last takeover of the volume. It is nil if there was none, and set only if
	// the volume was read alone.
	TakenOver *TakenOver

	Move *Move // nil if no move is in progress, or if it was not read

	// Conflict says that hosts use the volume against its mode. It is set only if the volume was read
	// alone.
	Conflict string
}

// Holder returns the host that a move takes the volume from, or gives it to. It returns an empty text if
// the volume has no single holder.
func (v VolumeView) Holder() string {
	for _, h := range v.Holds {
		if holds(h.Access, h.Reader) {
			return h.Host
		}
	}
	return ""
}

// HostView is a host of the cluster as people see it.
type HostView struct {
	Name  string
	Node  Node
	State HostState
	Alive bool // the lease of the host exists

	// Seen is the last time that the host has written into the cluster: the time of its
	// registration, of a change of its state, or of its status. A host whose lease has ended was
	// alive at that time, and may have been alive later.
	Seen time.Time

	Info      NodeInfo
	HoldCount int

	// These fields are set only if a single host was read.
	Holds []HoldView
	Calls []CallView // the calls in flight of the host
	Proof *Proof     // if the host is being fenced or replaced, or was fenced and has not registered since
}

// Holders returns the holds that the keys use and users show. The operations, attachments and tokens
// of the holds are unknown.
func Holders(id string, use Use, users []Entry[User]) []HoldView {
	var holds []HoldView
	if use.Holder != "" {
		holds = append(holds, HoldView{Volume: id, Host: use.Holder, Access: use.Access, Since: use.Since})
	}

	for _, u := range users {
		node, ok := LastID(u.Key)
		if ok && node != use.Holder {
			holds = append(holds, HoldView{
				Volume: id, Host: node, Access: use.Access, Reader: use.Access == call.MultiNodeSingleWriter, Since: u.Value.Since,
			})
		}
	}

	for _, r := range use.Rivals {
		holds = append(holds, HoldView{Volume: id, Host: r.Host, Access: r.Access, Reader: r.Reader, Since: r.Since})
	}

	return holds
}

// ViewHold returns the view of a hold that was read.
func ViewHold(host, id string, e Entry[Hold], epoch int64) HoldView {
	h := e.Value
	return HoldView{
		Volume: id, Host: host, Access: h.Access, Reader: h.Reader, Attachment: h.Attachment, NodeID: h.NodeID, Operation: h.Operation, Since: h.Since,
		Token: volume.Token{Epoch: epoch, Revision: e.Create},
	}
}

// Rival returns the host that the volume's mode names as the holder instead of the host of a hold. It
// returns an empty text if the hold does not need to be that of the holder.
func (u Use) Rival(h HoldView) string {
	if !holds(h.Access, h.Reader) || u.Holder == h.Host {
		return ""
	}
	return u.Holder
}
