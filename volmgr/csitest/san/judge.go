package san

import "github.com/container-storage-interface/spec/lib/go/csi"

// Rule is a promise of the cluster that the SAN judges.
type Rule string

// These constants are the rules.
const (
	// RuleTwoNodes: two nodes are attached to a volume, and at least one of them in a single-node
	// mode. A read-only attachment counts, because a read-only ext4 may replay its journal.
	RuleTwoNodes Rule = "two nodes in a single-node mode"

	// RuleTwoWriters: two nodes are attached for writing, and at least one of them in the mode
	// MULTI_NODE_SINGLE_WRITER.
	RuleTwoWriters Rule = "two writers in a single-writer mode"

	// RuleForeignWrite: a node changed the data of a volume while another node held a writable
	// attachment that excludes other writers.
	RuleForeignWrite Rule = "write beside another writer"

	// RuleTwoCallers: two nodes had a changing call to the controller for one volume in flight. A
	// call whose caller has stopped waiting is no longer in flight.
	RuleTwoCallers Rule = "controller calls from two nodes"

	// RuleLimit: more volumes are attached to a node than its max_volumes_per_node.
	RuleLimit Rule = "too many volumes on a node"

	// RuleEmptyNode: a ControllerUnpublishVolume has an empty node id, which detaches all nodes.
	RuleEmptyNode Rule = "ControllerUnpublishVolume without a node id"
)

// Mode is a CSI access mode.
type Mode = csi.VolumeCapability_AccessMode_Mode

// singleNode reports whether a mode permits only one node.
func singleNode(m Mode) bool {
	switch m {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		return true
	default:
		return false
	}
}

// readerOnly reports whether a mode forbids writing.
func readerOnly(m Mode) bool {
	return m == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY || m == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
}

// holder is the part of an attachment that the judge needs.
type holder struct {
	node     string
	mode     Mode
	writable bool
}

// conflict returns the rule that two attachments of one volume break together, or an empty string.
func conflict(a, b holder) Rule {
	oneWriter := a.mode == csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER || b.mode == csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER
	switch {
	case a.node == b.node:
		return ""
	case singleNode(a.mode) || singleNode(b.mode):
		return RuleTwoNodes
	case a.writable && b.writable && oneWriter:
		return RuleTwoWriters
	default:
		return ""
	}
}
