package shared

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// Self is a host as its agent knows it, before it registers.
type Self struct {
	Node    string
	Boot    string
	Machine Machine
	DataDir string // identifies the data directory of the agent, as long as the host does not reboot

	// Member is the stored membership of the host. Registration is the id of the registration that it is
	// about to make.
	Member       Membership
	Registration string
	StoreID      string // of the store that the host has now reached

	// Undone is set if the host has unmounted its lost volumes, as far as it can. Quarantined are the lost
	// volumes that it cannot unmount.
	Undone      bool
	Quarantined []string

	Lease Lease
	Now   time.Time
}

// Membership is the part of a host in its cluster, as the host's own state database stores it.
type Membership struct {
	ClusterID string `json:"cluster_id"` // empty for a host that was never registered
	Era              // of the last registration

	// Revision is the newest revision of the store that the host remembers. StoreID identifies the
	// store itself. Both belong to the epoch.
	Revision int64  `json:"revision,omitempty"`
	StoreID  string `json:"store_id,omitempty"`

	// DataDir identified the data directory at the last registration. A copy of the directory has
	// another identity.
	DataDir string `json:"data_dir,omitempty"`

	// Incarnation is that of the last registration whose answer has arrived.
	Incarnation uint64 `json:"incarnation"`

	// Lease is that of the last registration. An agent that may not register any more renews it.
	Lease Lease `json:"lease,omitempty"`

	// Forgotten is set from the registration of a host whose state was older than the cluster's until the
	// host has lost its claims. A crash in between must not make the old records valid.
	Forgotten bool `json:"forgotten,omitempty"`

	// Registrations are the ids of the last registrations, newest last. The agent stores an id before
	// it sends the transaction, so that it recognises a registration whose answer was lost.
	Registrations []string `json:"registrations,omitempty"`
}

// keptRegistrations limits the ids in Membership.Registrations. Each crash during a registration
// adds one.
const keptRegistrations = 8

// Intends returns the membership with one more registration id.
func (m Membership) Intends(registration string) Membership {
	m.Registrations = append(slices.Clone(m.Registrations), registration)
	if extra := len(m.Registrations) - keptRegistrations; extra > 0 {
		m.Registrations = m.Registrations[extra:]
	}
	return m
}

// knows reports whether the host has made a registration with this id.
func (m Membership) knows(registration string) bool {
	return slices.Contains(m.Registrations, registration)
}

// Arrival contains the keys that decide about a registration.
type Arrival struct {
	Meta Entry[Meta]
	Node Entry[Node]
	Live Entry[Live]

	Revision int64 // of the read
}

// ArrivalReads returns the operations that read an Arrival.
func ArrivalReads(node string) []Op {
	return []Op{Get(MetaKey), Get(NodeKey(node)), Get(LiveKey(node))}
}

// ParseArrival decodes the results of the operations from ArrivalReads.
func ParseArrival(node string, res Result) (Arrival, error) {
	a, reads := Arrival{Revision: res.Revision}, res.Reads
	if len(reads) != len(ArrivalReads(node)) {
		return a, volume.Errorf(volume.ErrInvalid, "etcd has answered %d reads of host %q", len(reads), node)
	}

	var errs []error
	a.Meta = entry[Meta](MetaKey, reads[0], &errs)
	a.Node = entry[Node](NodeKey(node), reads[1], &errs)
	a.Live = entry[Live](LiveKey(node), reads[2], &errs)
	for _, err := range errs {
		if err != nil {
			return a, err
		}
	}

	return a, nil
}

// Admission is the decision about a registration.
type Admission struct {
	Txn         Txn
	Incarnation uint64 // the incarnation after the registration

	// Forgotten is set if the host's own state is older than the cluster's, as after a return to a
	// snapshot of a virtual machine. The claims that the host remembers are then lost.
	Forgotten bool
}

// Registered returns the incarnation of a registration that was already made, but whose answer was
// lost.
func (a Arrival) Registered(s Self) (incarnation uint64, ok bool) {
	n := a.Node.Value
	if a.Node.Exists() && n.Registration == s.Registration && a.Live.Exists() && a.Live.Value.Registration == s.Registration {
		return n.Incarnation, true
	}
	return 0, false
}

// Register returns the transaction that registers a host and raises its incarnation. It refuses a
// host whose name another machine uses, and a cluster other than the one that the host knows.
func (a Arrival) Register(s Self) (Admission, error) {
	if err := a.checkCluster(s); err != nil {
		return Admission{}, err
	}
	if err := a.CheckAge(s); err != nil {
		return Admission{}, err
	}
	if err := a.checkNode(s); err != nil {
		return Admission{}, err
	}

	had := a.Node.Value
	n := Node{
		Incarnation: max(had.Incarnation, s.Member.Incarnation) + 1, Registration: s.Registration, Boot: s.Boot, Machine: s.Machine, State: NodeReady, Since: s.Now, Era: a.Meta.Value.Era(),
		Quarantined: s.Quarantined,
	}
	if had.State == NodeDraining {
		n.State, n.Since = had.State, had.Since
	}
	if a.Unsettled() {
		n.Era = had.Era // until Settle
	}

	// The agent may have registered, and died before the answer. It then knows the id.
	forgotten := had.Incarnation > s.Member.Incarnation && !s.Member.knows(had.Registration)
	return Admission{
		Incarnation: n.Incarnation, Forgotten: forgotten,
		Txn: Txn{
			If: []Compare{Unchanged(a.Meta.KV), Unchanged(a.Node.KV), Unchanged(a.Live.KV)},
			Then: []Op{
				a.Node.Put(n),
				PutLeased(LiveKey(s.Node), a.Live.Encode(Live{Incarnation: n.Incarnation, Registration: s.Registration}), s.Lease),
			},
			Else: ArrivalReads(s.Node),
		},
	}, nil
}

// Unsettled reports whether the host may use volumes that the store does not show, because it has not
// written its holds in the present epoch.
func (a Arrival) Unsettled() bool {
	n := a.Node.Value
	return a.Node.Exists() && n.Registration != "" && n.Era != a.Meta.Value.Era()
}

// Settle returns the transaction by which a host shows that it has written all its holds in the present
// epoch. Only after that can a person let the cluster admit writers again. An empty transaction means
// that the cluster shows it already.
func (a Arrival) Settle(who Asker) (Txn, error) {
	if err := CheckRegistered(a.Meta, a.Node, who); err != nil {
		return Txn{}, err
	}
	if !a.Unsettled() {
		return Txn{}, nil
	}

	n := a.Node.Value
	n.Era = who.Era
	return Txn{If: []Compare{Unchanged(a.Meta.KV), Unchanged(a.Node.KV)}, Then: []Op{a.Node.Put(n)}, Else: ArrivalReads(who.Node)}, nil
}

// checkCluster refuses a cluster that is not the one that the host knows, or that this release
// cannot write to.
func (a Arrival) checkCluster(s Self) error {
	m, had := a.Meta.Value, s.Member
	switch {
	case !a.Meta.Exists() && had.ClusterID != "":
		return volume.Errorf(volume.ErrRefused, "etcd has no data of the cluster %s, to which this host belongs", had.ClusterID).
			WithHint("are cluster.endpoints and cluster.prefix right? Was etcd restored from an older backup?")
	case !a.Meta.Exists():
		return volume.Errorf(volume.ErrRefused, "etcd has no data of a cluster yet")
	case m.Schema > Schema:
		return volume.Errorf(ErrNewerSchema, "the cluster was upgraded to schema %d, and this release knows schema %d", m.Schema, Schema).
			WithHint("install the newer release of volagent on this host")
	case had.ClusterID != "" && had.ClusterID != m.ClusterID:
		return volume.Errorf(volume.ErrRefused, "etcd has the data of cluster %s, and this host belongs to cluster %s", m.ClusterID, had.ClusterID).
			WithHint("set cluster.endpoints and cluster.prefix to those of the host's own cluster")
	default:
		return nil
	}
}

// checkNode refuses a host whose name belongs to another machine, to another agent that is alive, or
// to a host that is being fenced.
func (a Arrival) checkNode(s Self) error {
	n, alive, had := a.Node.Value, a.Live.Value, s.Member
	// A copy of a host that runs knows its registration too. But it has booted on its own, or it is a
	// container of the same machine and its data directory is a copy.
	copied := differ(n.Boot, s.Boot) || differ(had.DataDir, s.DataDir)
	other := copied || !had.knows(alive.Registration)
	switch {
	case a.Live.Exists() && alive.Registration != s.Registration && other:
		return volume.Errorf(volume.ErrRefused, "another agent is registered as host %q, and is alive", s.Node).
			WithHint("two hosts need two names: set node_id on one of them. After a crash of this host, wait until its lease has ended")
	case a.Node.Exists() && n.Machine.Differs(s.Machine) != "":
		return volume.Errorf(volume.ErrRefused, "host %q was registered by another machine: its %s differs", s.Node, n.Machine.Differs(s.Machine)).
			WithHint("two machines need two names: set node_id on the new one. If it replaces the old one, run on another host: volctl node replace")
	case n.State == NodeFenced && n.Fenced(a.Meta.Value) && s.Undone:
		return nil
	case n.Fenced(a.Meta.Value):
		return volume.Errorf(ErrFenced, "host %q is fenced, and must first unmount its lost volumes: %s", s.Node, n.FencingWords(s.Now))
	default:
		return nil
	}
}

// ErrFenced means that a host cannot register, because it is being fenced, or has not unmounted its
// lost volumes yet.
var ErrFenced = fmt.Errorf("fenced: %w", volume.ErrRefused)

// Describe returns the transaction by which a host describes its plugins.
func (a Arrival) Describe(who Asker, info []byte) (Txn, error) {
	if err := CheckRegistered(a.Meta, a.Node, who); err != nil {
		return Txn{}, err
	}
	return Txn{
		If:   []Compare{Unchanged(a.Meta.KV), Unchanged(a.Node.KV)},
		Then: []Op{Put(NodeInfoKey(who.Node), info)},
	}, nil
}

// HeldAs says under which CSI node id a host holds a volume of a plugin.
type HeldAs struct{ Plugin, NodeID string }

// ErrNodeIDMoved means that a plugin has another CSI node id than the one under which its host holds
// volumes. The attachments belong to the earlier id.
var ErrNodeIDMoved = fmt.Errorf("another CSI node id: %w", volume.ErrRefused)

// CheckNodeIDs returns an error that wraps ErrNodeIDMoved if a plugin of a host has another CSI node id
// than the one of a hold. The host is then a copy of another one, or the driver takes its id from a
// setting that has changed. A plugin that has not answered yet is not compared.
func CheckNodeIDs(node string, now NodeInfo, held []HeldAs) error {
	held = slices.SortedFunc(slices.Values(held), func(a, b HeldAs) int {
		return cmp.Or(strings.Compare(a.Plugin, b.Plugin), strings.Compare(a.NodeID, b.NodeID))
	})
	for _, h := range held {
		if is := now.Plugins[h.Plugin].NodeID; differ(h.NodeID, is) {
			return volume.Errorf(ErrNodeIDMoved, "the CSI node id of plugin %q on host %q was %q, and is now %q", h.Plugin, node, h.NodeID, is).
				WithHint("restore the earlier node id if the driver takes it from its configuration or from the host name. A copy of a host needs a node_id of its own. If a new machine replaces the old one, run on another host: volctl node replace")
		}
	}
	return nil
}

// Found returns the transaction that writes the first key of a new cluster. It is executed only if the
// prefix is empty. CheckFound examines its result.
func Found(clusterID string) Txn {
	m := Meta{Schema: Schema, ClusterID: clusterID, Epoch: 1}
	return Txn{If: []Compare{NoneIn(allKeys)}, Then: []Op{Put(MetaKey, Entry[Meta]{}.Encode(m))}, Else: []Op{Get(MetaKey), GetSpan(allKeys, 1)}}
}

// CheckFound returns an error if the transaction from Found has found other data under the prefix. It
// is no error if another host has founded the cluster.
func CheckFound(res Result) error {
	if res.Done || len(res.Reads) < 2 || len(res.Reads[0]) > 0 || len(res.Reads[1]) == 0 {
		return nil
	}
	return volume.Errorf(volume.ErrRefused, "etcd has no cluster under the prefix, but other data: key %q", res.Reads[1][0].Key).
		WithHint("set cluster.prefix to a prefix that no other program uses. If the key belongs to volagent, restore etcd from a backup")
}

// Leave returns the transaction by which a host says that its agent was stopped in order. The host
// is expected back until the given time.
func (a Arrival) Leave(who Asker, now, until time.Time) (Txn, error) {
	if err := CheckRegistered(a.Meta, a.Node, who); err != nil {
		return Txn{}, err
	}

	n := a.Node.Value
	switch n.State {
	case NodeReady:
		n.State, n.Since, n.Until = NodeAway, now, until
	case NodeDraining:
		n.Until = until // the next start continues the drain
	}

	return Txn{
		If:   []Compare{Unchanged(a.Node.KV)},
		Then: []Op{a.Node.Put(n), Delete(LiveKey(who.Node))},
		Else: ArrivalReads(who.Node),
	}, nil
}

// SetState returns the transaction that drains a host or ends its drain.
func (a Arrival) SetState(who Asker, state NodeState, now time.Time) (Txn, error) {
	if err := CheckRegistered(a.Meta, a.Node, who); err != nil {
		return Txn{}, err
	}

	n := a.Node.Value
	n.State, n.Since = state, now
	return Txn{If: []Compare{Unchanged(a.Node.KV)}, Then: []Op{a.Node.Put(n)}, Else: ArrivalReads(who.Node)}, nil
}

// SetQuarantined returns the transaction by which a host shows which lost volumes it still has mounted.
func (a Arrival) SetQuarantined(who Asker, ids []string) (Txn, error) {
	if err := CheckRegistered(a.Meta, a.Node, who); err != nil {
		return Txn{}, err
	}

	n := a.Node.Value
	n.Quarantined = ids
	return Txn{If: []Compare{Unchanged(a.Node.KV)}, Then: []Op{a.Node.Put(n)}, Else: ArrivalReads(who.Node)}, nil
}
