package api

import "time"

// WarningHeader is the header of an answer that is incomplete. Each value is one sentence for a
// person.
const WarningHeader = "Volagent-Warning"

// StateHeld is the state of a shared volume that other hosts hold, and of which this host has no
// record.
const StateHeld = "held"

// The states of a host in a cluster.
const (
	HostReady    = "ready"
	HostDraining = "draining"
	HostAway     = "away"    // the agent was stopped in order and is expected back
	HostGone     = "gone"    // the lease of the host has ended
	HostFencing  = "fencing" // other hosts take over its volumes, or a person replaces it
	HostFenced   = "fenced"
)

// Hold is the right of one host to use a shared volume.
type Hold struct {
	Volume string `json:"volume"`
	Host   string `json:"host"`

	// HostState is one of the Host constants. It is empty in a list of volumes.
	HostState  string `json:"host_state,omitempty"`
	AccessMode string `json:"access_mode"`
	Reader     bool   `json:"reader,omitempty"` // the host only reads, and another host may write

	// Attachment is "attaching", "attached", "detaching" or "unknown". It is empty if the volume
	// needs no attachment, and in a list of volumes.
	Attachment string    `json:"attachment,omitempty"`
	Since      time.Time `json:"since"`

	// Token orders the holds on a volume, as EPOCH.REVISION. It is empty in a list of volumes.
	Token string `json:"token,omitempty"`

	// Claims is the number of claims on the host, and State the state of the volume there. The host
	// writes both at most once a second. They are missing if it has not written them.
	Claims *int   `json:"claims,omitempty"`
	State  string `json:"state,omitempty"`
}

// ClusterCall is a controller call in flight.
type ClusterCall struct {
	Volume   string    `json:"volume"`
	Executor string    `json:"executor"` // the host that makes the call
	Call     string    `json:"call"`
	Target   string    `json:"target,omitempty"` // the host whose attachment the call changes
	Since    time.Time `json:"since"`
}

// ClusterHost is a host of a cluster.
type ClusterHost struct {
	ID    string    `json:"id"`
	Self  bool      `json:"self,omitempty"` // the host that answers
	State string    `json:"state"`          // one of the Host constants
	Since time.Time `json:"since"`          // when the host registered, or when its recorded state changed

	// Until is the end of the state "away". It is zero in other states.
	Until time.Time `json:"until,omitzero"`

	// Alive is set while the lease of the host exists. Seen is the last time that the host has
	// written into the cluster. A host that is not alive may have been alive later than that.
	Alive bool      `json:"alive"`
	Seen  time.Time `json:"seen"`

	Incarnation uint64          `json:"incarnation"` // increases with each start of the host's agent
	Version     string          `json:"version,omitempty"`
	Plugins     []ClusterPlugin `json:"plugins"`
	HoldCount   int             `json:"hold_count"`

	// Quarantined are the volumes that the host has lost in a fencing, and that it still has mounted.
	Quarantined []string `json:"quarantined,omitempty"`

	// Holds, Calls and Proof are set only in an answer about a single host. Proof is set if the host is
	// being fenced or replaced, or was fenced and has not registered since then.
	Holds []Hold        `json:"holds,omitempty"`
	Calls []ClusterCall `json:"calls,omitempty"`
	Proof *FenceProof   `json:"proof,omitempty"`
}

// FenceProof is the proof that a host cannot write any more.
type FenceProof struct {
	Kind   string    `json:"kind"` // detach, hook, person, returned or replaced
	Who    string    `json:"who"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`

	Drops []FenceDrop  `json:"drops,omitempty"` // the volumes that were taken from the host
	Hooks []FenceAsked `json:"hooks,omitempty"` // the hooks that were asked, also those without success
}

// FenceDrop is a volume that was taken from a host.
type FenceDrop struct {
	Volume string    `json:"volume"`
	Kind   string    `json:"kind"` // as in FenceProof
	By     string    `json:"by"`   // the host that has done it
	At     time.Time `json:"at"`
}

// Takeover is the takeover of a volume from a host that was gone.
type Takeover struct {
	From string `json:"from"`
	FenceDrop
}

// FenceAsked is a hook that was asked to switch a host off.
type FenceAsked struct {
	Name string    `json:"name"`
	By   string    `json:"by"` // the host on which the hook ran
	At   time.Time `json:"at"`

	// Outcome says how the last request has ended without a proof: "failed", or "cancelled: " and the reason.
	Outcome string `json:"outcome,omitempty"`
}

// ClusterPlugin is a plugin of a host.
type ClusterPlugin struct {
	ID         string `json:"id"`
	Driver     string `json:"driver,omitempty"`
	Version    string `json:"version,omitempty"`
	NodeID     string `json:"node_id,omitempty"` // the CSI node id
	Controller bool   `json:"controller,omitempty"`
	MaxVolumes int64  `json:"max_volumes,omitempty"`
}

// NodeCluster describes the part of this host in its cluster.
type NodeCluster struct {
	Endpoints string `json:"endpoints"` // the addresses of etcd, separated by commas
	Reachable bool   `json:"reachable"`

	// Reason says why the host can change nothing in the cluster, and Since since when. They are set
	// only if Reachable is not.
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since,omitzero"`

	Incarnation uint64   `json:"incarnation,omitempty"` // 0 until the host is registered
	Holds       int      `json:"holds"`
	Pending     []string `json:"pending,omitempty"` // the work that waits for the cluster
}

// FenceRequest states that a host is switched off.
type FenceRequest struct {
	Reason string `json:"reason"`
}

// Fenced is the result of a fencing by a person.
type Fenced struct {
	Host  string     `json:"host"`
	Proof FenceProof `json:"proof"`
	Taken []string   `json:"taken"` // the volumes that other hosts waited for, and that were taken from the host
}

// Unfenced is the result of the end of a fencing.
type Unfenced struct {
	Host  string   `json:"host"`
	Hooks []string `json:"hooks"` // the hooks that gave the host its access back
}

// FenceTestRequest asks the fence hooks about a host.
type FenceTestRequest struct {
	Off bool `json:"off,omitempty"` // also switch the host off
}

// FenceTested contains the answers of the fence hooks.
type FenceTested struct {
	Host    string   `json:"host"`
	Answers []string `json:"answers"`
}

// ReplaceRequest asks to replace a host whose machine is gone.
type ReplaceRequest struct {
	Reason string `json:"reason"`
}

// Replaced is the result of a replacement.
type Replaced struct {
	Host    string   `json:"host"`
	Dropped []string `json:"dropped"` // the volumes whose hold was dropped
}

// MoveRequest asks for the move of a shared volume to another host.
type MoveRequest struct {
	Host string `json:"host"`
}

// Moved is the result of a move.
type Moved struct {
	Volume string `json:"volume"`
	From   string `json:"from"`
	To     string `json:"to"`

	// Taken is set if the host To holds the volume now. Otherwise the volume is free, and reserved for
	// a claim on that host for the time ReservedFor.
	Taken       bool   `json:"taken"`
	ReservedFor string `json:"reserved_for,omitempty"`
}

// Move is a move of a shared volume that has not ended.
type Move struct {
	From    string    `json:"from"`
	To      string    `json:"to"`
	By      string    `json:"by"` // the host on which a person asked for the move
	Since   time.Time `json:"since"`
	Summary string    `json:"summary"`
}
