package call

// AccessMode is CSI's VolumeCapability.AccessMode, in the spelling that users type.
type AccessMode string

// The seven access modes.
const (
	SingleNodeReaderOnly   AccessMode = "single-node-reader-only"
	SingleNodeWriter       AccessMode = "single-node-writer"
	SingleNodeSingleWriter AccessMode = "single-node-single-writer"
	SingleNodeMultiWriter  AccessMode = "single-node-multi-writer"
	MultiNodeReaderOnly    AccessMode = "multi-node-reader-only"
	MultiNodeSingleWriter  AccessMode = "multi-node-single-writer"
	MultiNodeMultiWriter   AccessMode = "multi-node-multi-writer"
)

// AccessModes lists all access modes, narrowest first.
var AccessModes = []AccessMode{
	SingleNodeReaderOnly, SingleNodeWriter, SingleNodeSingleWriter, SingleNodeMultiWriter,
	MultiNodeReaderOnly, MultiNodeSingleWriter, MultiNodeMultiWriter,
}

// Writable reports whether a claim in this mode may ever write.
func (m AccessMode) Writable() bool {
	return m != SingleNodeReaderOnly && m != MultiNodeReaderOnly
}

// AttachmentMode says whether an alloc gets a file system or a block device.
type AttachmentMode string

// The two attachment modes.
const (
	FileSystem  AttachmentMode = "file-system"
	BlockDevice AttachmentMode = "block-device"
)

// Capability is one way in which a volume may be claimed.
type Capability struct {
	Access     AccessMode     `json:"access_mode"`
	Attachment AttachmentMode `json:"attachment_mode"`
}
