package shared

import (
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
)

// Holder is a host that has a hold on a volume.
type Holder struct {
	Node string
	Hold Hold
	Mod  int64 // the revision of the hold
}

// Published compares the nodes to which a driver says that a volume is attached with the holds.
type Published struct {
	Listed []string          // the CSI node ids from the driver
	Nodes  map[string]string // the hosts of the cluster, by their CSI node ids
	Holds  []Holder
}

// PublishedNode is a host and its CSI node id. Mod is the revision of its hold, or 0 without a hold.
type PublishedNode struct {
	Node, NodeID string
	Mod          int64
}

// Differences returns the hosts to which the volume is attached without a hold, and the hosts that
// have a hold with an attachment which the driver does not list. A host whose attachment is being
// changed is neither. A listed node that is no host of the cluster may have another owner, so the
// cluster leaves it alone.
func (p Published) Differences() (extra, missing []PublishedNode) {
	holding := func(node, id string) bool {
		return slices.ContainsFunc(p.Holds, func(h Holder) bool {
			return h.Node == node || h.Hold.Attachment != "" && h.Hold.NodeID == id
		})
	}
	for _, id := range p.Listed {
		node, ok := p.Nodes[id]
		if ok && id != "" && !holding(node, id) {
			extra = append(extra, PublishedNode{Node: node, NodeID: id})
		}
	}
	for _, h := range p.Holds {
		if h.Hold.Attachment == Attached && !slices.Contains(p.Listed, h.Hold.NodeID) {
			missing = append(missing, PublishedNode{Node: h.Node, NodeID: h.Hold.NodeID, Mod: h.Mod})
		}
	}
	return extra, missing
}

// BeginUnpublish returns the transaction that announces a ControllerUnpublishVolume for a host that has
// no hold. It fails if the host has got a hold, or if another call is in flight. EndTakenOver ends the
// call. If the executor dies, TakeOverCall continues it.
func (o Orphan) BeginUnpublish(who Asker, nodeID string, deadline time.Duration, now time.Time) (Txn, error) {
	if err := CheckRegistered(o.Meta, o.Node, who); err != nil {
		return Txn{}, err
	}
	if o.Meta.Value.Suspended != "" || o.Call.Exists() || o.Hold.Exists() || nodeID == "" {
		return Txn{}, ErrNotOrphan
	}

	c := Call{
		Executor: who.Node, Incarnation: who.Incarnation, Call: call.ControllerUnpublish, Target: o.call.Target, NodeID: nodeID,
		Since: now, Deadline: deadline, Taken: true,
	}
	return o.txn([]Compare{Absent(o.Call.Key), Absent(o.Hold.Key)}, o.Call.Put(c)), nil
}

// MarkMissing returns the transaction that tells a host that its volume is no longer attached to it. It
// fails if the hold has changed since it was compared with the attachments.
func (o Orphan) MarkMissing(who Asker, n PublishedNode) (Txn, error) {
	if err := CheckRegistered(o.Meta, o.Node, who); err != nil {
		return Txn{}, err
	}

	hold := o.Hold.Value
	same := o.Hold.Exists() && hold.Attachment == Attached && hold.NodeID == n.NodeID && o.Hold.Mod == n.Mod
	if o.Meta.Value.Suspended != "" || o.Call.Exists() || !same {
		return Txn{}, ErrNotOrphan
	}
	hold.Attachment, hold.By = Unclear, who.Node
	return o.txn([]Compare{Absent(o.Call.Key), Unchanged(o.Hold.KV)}, o.Hold.Put(hold)), nil
}
