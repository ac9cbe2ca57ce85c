package localdriver

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// topologyKey is the key of the only topology segment. Its value is the node whose disk contains
// the volume.
const topologyKey = "topology." + DriverName + "/node"

// segmentValue matches the values that CSI allows for a topology segment.
var segmentValue = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)

// topologyNode returns the node id if CSI allows it as the value of a topology segment. Otherwise
// it returns a hash of the node id.
func topologyNode(nodeID string) string {
	if segmentValue.MatchString(nodeID) {
		return nodeID
	}
	sum := sha256.Sum256([]byte(nodeID))
	return "node-" + hex.EncodeToString(sum[:16])
}

func (d *driver) topology() *csi.Topology {
	return &csi.Topology{Segments: map[string]string{topologyKey: topologyNode(d.opts.NodeID)}}
}

// isHere reports whether this node has all segments of the given topology.
func (d *driver) isHere(t *csi.Topology) bool {
	own := d.topology().GetSegments()
	for k, v := range t.GetSegments() {
		if have, ok := own[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// checkTopology returns an error if a volume must be on another node. If the caller only prefers
// another node, the driver makes the volume here, because it has no other place.
func (d *driver) checkTopology(r *csi.TopologyRequirement) error {
	if len(r.GetRequisite()) == 0 {
		return nil
	}

	for _, t := range r.GetRequisite() {
		if d.isHere(t) {
			return nil
		}
	}

	return csierr.Errorf(codes.ResourceExhausted, "the volume must be on another node than this one: its requisite topologies do not include %s: %s",
		topologyKey, topologyNode(d.opts.NodeID))
}

// csi returns the volume in the form of a controller's answer, with its topology.
func (d *driver) csi(v store.Volume) *csi.Volume {
	answer := v.CSI()
	answer.AccessibleTopology = []*csi.Topology{d.topology()}
	return answer
}
