package shared

import (
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// Schema is the version of the keys and values that this release reads and writes. A cluster with a
// newer schema is only read.
const Schema = 1

// Meta describes the cluster.
type Meta struct {
	Schema    int    `json:"schema"`
	ClusterID string `json:"cluster_id"`

	// Epoch becomes greater when the store is restored from a backup. EpochTail is random, so that
	// two restores of one backup differ.
	Epoch     int64  `json:"epoch"`
	EpochTail string `json:"epoch_tail,omitempty"`

	// Suspended says why no single-writer volume can be admitted, after a restore. It is empty in
	// normal operation, and a person clears it.
	Suspended string `json:"suspended,omitempty"`

	// WentBack names the host that has seen a newer state of the store than the store has. It is
	// empty after a person has begun a new epoch.
	WentBack string `json:"went_back,omitempty"`
}

// Era is one epoch of the cluster. A restore of the store begins a new one.
type Era struct {
	Epoch int64  `json:"epoch"`
	Tail  string `json:"epoch_tail,omitempty"`
}

// Era returns the present epoch of the cluster.
func (m Meta) Era() Era { return Era{m.Epoch, m.EpochTail} }

// NodeState is the state of a host in the cluster.
type NodeState string

// These are the states of a host.
const (
	NodeReady    NodeState = "ready"
	NodeDraining NodeState = "draining" // the host gets no further holds
	NodeAway     NodeState = "away"     // the agent was stopped in order and is expected back
	NodeFencing  NodeState = "fencing"  // another host takes over the volumes of this host
	NodeFenced   NodeState = "fenced"   // proof that this host cannot write is recorded
)

// Machine identifies the hardware and the installation of a host. An empty field is not compared.
type Machine struct {
	ID  string `json:"id,omitempty"`  // /etc/machine-id
	DMI string `json:"dmi,omitempty"` // the product UUID of the firmware
}

// Differs names the first field in which both machines have different values.
func (m Machine) Differs(o Machine) string {
	switch {
	case differ(m.ID, o.ID):
		return "machine id"
	case differ(m.DMI, o.DMI):
		return "DMI product UUID"
	default:
		return ""
	}
}

// differ reports whether two identities are known and differ.
func differ(a, b string) bool { return a != "" && b != "" && a != b }

// Node is one host of the cluster. Every write of the host compares the revision of its node key.
type Node struct {
	// Incarnation counts the registrations of the host. Each start of an agent raises it.
	Incarnation uint64 `json:"incarnation"`

	// Registration is the random id of the last registration. A host stores the id before it
	// registers, and so recognises a registration whose answer was lost.
	Registration string `json:"registration"`

	Boot    string    `json:"boot"`
	Machine Machine   `json:"machine,omitzero"`
	State   NodeState `json:"state"`

	// Since is the time of the last change of State. Until is the end of the state NodeAway. A
	// draining host whose agent was stopped in order is away until then too, and stays draining.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`

	// Era is the epoch in which the host has registered and written all its holds. After a restore of
	// the store, a host of an earlier epoch may use volumes that the store does not show.
	Era Era `json:"era,omitzero"`

	// Fencing describes the fencing of the host. It is nil if the host has registered since its last
	// fencing.
	Fencing *Fencing `json:"fencing,omitempty"`

	// Quarantined are the volumes that the host has lost in a fencing, and that were still mounted when it
	// registered again. The host refuses their use until they are unmounted.
	Quarantined []string `json:"quarantined,omitempty"`
}

// Fencing is the fencing of a host. The states NodeFencing and NodeFenced have one.
type Fencing struct {
	// By is the host that fences, with its incarnation. Only this host asks hooks.
	By            string `json:"by"`
	ByIncarnation uint64 `json:"by_incarnation"`

	// Era is the epoch of the fencing. A fencing of an earlier epoch is void.
	Era Era `json:"era,omitzero"`

	// Was is the state of the host before, and Since its time.
	Was   NodeState `json:"was"`
	Since time.Time `json:"since,omitzero"`

	// Hook is set before the first hook is asked to switch the host off. From then on, the host may be off.
	Hook bool `json:"hook,omitempty"`

	// Proven is the kind of the proof that the whole host cannot write. It is empty as long as only the
	// volumes in Proof.Drops have a proof.
	Proven ProofKind `json:"proven,omitempty"`
}

// NodeInfo describes the plugins of a host.
type NodeInfo struct {
	Version string                `json:"version"`
	Schema  int                   `json:"schema"` // the newest schema that the host's agent supports
	Plugins map[string]NodePlugin `json:"plugins,omitempty"`

	// Key is the public key to which other hosts seal the results of tasks.
	Key []byte `json:"key,omitempty"`

	// Hooks are the names of the fence hooks that the host can call.
	Hooks []string `json:"hooks,omitempty"`
}

// NodePlugin describes one plugin of a host.
type NodePlugin struct {
	Driver     string            `json:"driver"`
	Version    string            `json:"version,omitempty"`
	NodeID     string            `json:"node_id,omitempty"` // the CSI node id
	Topology   map[string]string `json:"topology,omitempty"`
	MaxVolumes int64             `json:"max_volumes,omitempty"`
	Controller bool              `json:"controller,omitempty"` // a controller of the plugin runs on the host

	// Caps are the capabilities of the plugin. Hosts without a controller need those of the
	// controller service.
	Caps plugin.Caps `json:"caps,omitzero"`

	// ControllerTimeout is the deadline of a controller call.
	ControllerTimeout time.Duration `json:"controller_timeout,omitempty"`

	// Fence is the proof that the driver permits for a host that is gone. It comes from the plugin file.
	Fence plugin.Fence `json:"fence,omitempty"`
}

// Keeping returns the info with the earlier answers of those plugins that have not answered since the
// start of the agent. Otherwise such a plugin would look like one without a controller.
func (n NodeInfo) Keeping(earlier NodeInfo) NodeInfo {
	for id, p := range n.Plugins {
		if had, ok := earlier.Plugins[id]; ok && p.Driver == "" {
			had.Fence = p.Fence // it comes from a file, so it needs no answer
			n.Plugins[id] = had
		}
	}
	return n
}

// Live shows that a host is alive. Its key has the host's lease.
type Live struct {
	Incarnation  uint64 `json:"incarnation"`
	Registration string `json:"registration"`
}

// Definition is a shared volume.
type Definition struct {
	Volume volume.Volume `json:"volume"`

	// Operation names the create of the volume. It is empty for a registered volume. A create that
	// has not finished is continued under the same operation.
	Operation string `json:"operation,omitempty"`

	// Deleting is set while the storage of the volume is deleted. No host gets a hold then.
	Deleting bool `json:"deleting,omitempty"`

	// Attach is set as soon as a host with a controller knows that the volume needs
	// ControllerPublishVolume. A host that knows no controller then gets no hold.
	Attach bool `json:"attach,omitempty"`
}

// Notice tells the hosts that use a volume that a host has changed its definition.
type Notice struct {
	By string `json:"by"`
}

// Removed tells all hosts that a host has removed a volume from the cluster. Only events use it.
type Removed struct {
	Volume string           `json:"volume"`
	By     string           `json:"by"`
	How    volume.EventType `json:"how"` // deleted, deregistered or unshared
}

// Use is the mode in which hosts use a volume. Its key exists as long as the volume.
type Use struct {
	Access call.AccessMode `json:"access,omitempty"` // empty while no host uses the volume

	// Holder is the one host that may use the volume in a single-node mode, or that may write in
	// the mode multi-node-single-writer.
	Holder string    `json:"holder,omitempty"`
	Since  time.Time `json:"since,omitzero"` // when Holder got its hold, by its own clock

	// Generation increases with each change. A host that abandons an admission raises it, so that
	// a late transaction of the same admission fails.
	Generation uint64 `json:"generation"`

	// TakenOver describes the last takeover of the volume, for people.
	TakenOver *TakenOver `json:"taken_over,omitempty"`

	// Rivals are further hosts that use the volume, although the mode in force does not permit it.
	// This is possible only after a restore of the store. A person decides which host keeps the
	// volume.
	Rivals []Rival `json:"rivals,omitempty"`
}

// TakenOver is a takeover of a volume from a lost host.
type TakenOver struct {
	From string `json:"from"`
	Drop
}

// Rival is a host whose hold contradicts the mode in force of a volume.
type Rival struct {
	Host   string          `json:"host"`
	Access call.AccessMode `json:"access"`
	Reader bool            `json:"reader,omitempty"`
	Since  time.Time       `json:"since"`
}

// User is a host that uses a volume beside others.
type User struct {
	Since time.Time `json:"since"`
}

// Attachment is the state of the attachment in a hold.
type Attachment string

// These are the states of an attachment. The zero value means that the volume needs none.
const (
	Attaching Attachment = "attaching"
	Attached  Attachment = "attached"
	Detaching Attachment = "detaching"
	Unclear   Attachment = "unknown"
)

// Hold is the right of a host to use a volume. The revision in which its key was created is the
// token of the hold.
type Hold struct {
	Access      call.AccessMode `json:"access"`
	Reader      bool            `json:"reader,omitempty"`
	Operation   string          `json:"operation"`
	Incarnation uint64          `json:"incarnation"` // of the host when it got the hold
	Attachment  Attachment      `json:"attachment,omitempty"`
	NodeID      string          `json:"node_id,omitempty"` // the CSI node id of the attachment
	Since       time.Time       `json:"since"`

	// By names the host that has set Attachment to Unclear in place of the holder. It is empty after
	// every change by the holder itself.
	By string `json:"by,omitempty"`

	// Late names a host whose ControllerPublishVolume for the holder was taken over while the volume was
	// mounted. The host may be paused, and its call may still arrive. A detach of the holder then proves
	// nothing.
	Late string `json:"late,omitempty"`
}

// Call is a controller call for a volume that is in flight, or may be.
type Call struct {
	Executor    string      `json:"executor"`
	Incarnation uint64      `json:"incarnation"`
	Operation   string      `json:"operation"`
	Call        call.Method `json:"call"`
	Target      string      `json:"target,omitempty"`  // the host whose attachment the call changes
	NodeID      string      `json:"node_id,omitempty"` // the CSI node id of that host
	Task        string      `json:"task,omitempty"`    // the id of the Task by which another host makes the call
	Since       time.Time   `json:"since"`

	// Taken is set if the executor makes the call in place of a host that is gone, or of a host without
	// a hold. The executor itself ends such a call.
	Taken bool `json:"taken,omitempty"`

	// Deadline is the time limit of the call at its executor. The call may still have an effect for
	// as long after the executor has ended. 0 means that the executor did not say it.
	Deadline time.Duration `json:"deadline,omitempty"`

	// Mounted is set in a ControllerPublishVolume for a target that has the volume mounted, or may have it.
	Mounted bool `json:"mounted,omitempty"`

	// Fence is set in the ControllerUnpublishVolume of a fencing.
	Fence bool `json:"fence,omitempty"`

	// Idle is set in a call that its executor has handed over. No host makes the call, and no earlier attempt
	// can have an effect any more. So another host need not wait until it takes the call over.
	Idle bool `json:"idle,omitempty"`
}

// Wanted says that a host waits for a volume of a host that is not alive. Its key has the lease of the
// waiting host.
type Wanted struct {
	Since time.Time `json:"since"`

	// Answer says why the volume is not taken over yet. The host that fences writes it for people.
	Answer string `json:"answer,omitempty"`
}

// Returned shows that a host which is being fenced, or was fenced, is back. Its key has a lease of the
// host.
type Returned struct {
	Boot string `json:"boot"`

	// Mounted are the shared volumes that the host has mounted, or may have mounted.
	Mounted []string `json:"mounted,omitempty"`
}
