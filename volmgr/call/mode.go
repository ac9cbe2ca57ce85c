package call

// AccessMode is the access mode of a CSI volume capability, as users write it.
type AccessMode string

// These are the seven access modes.
const (
	SingleNodeReaderOnly   AccessMode = "single-node-reader-only"
	SingleNodeWriter       AccessMode = "single-node-writer"
	SingleNodeSingleWriter AccessMode = "single-node-single-writer"
	SingleNodeMultiWriter  AccessMode = "single-node-multi-writer"
	MultiNodeReaderOnly    AccessMode = "multi-node-reader-only"
	MultiNodeSingleWriter  AccessMode = "multi-node-single-writer"
	MultiNodeMultiWriter   AccessMode = "multi-node-multi-writer"
)

// AccessModes lists all access modes, from the most to the least restrictive.
var AccessModes = []AccessMode{
	SingleNodeReaderOnly, SingleNodeWriter, SingleNodeSingleWriter, SingleNodeMultiWriter,
	MultiNodeReaderOnly, MultiNodeSingleWriter, MultiNodeMultiWriter,
}

// Writable reports whether a claim in this mode can write.
func (m AccessMode) Writable() bool {
	return m != SingleNodeReaderOnly && m != MultiNodeReaderOnly
}

// AttachmentMode says whether an alloc gets a file system or a block device.
type AttachmentMode string

// These are the two attachment modes.
const (
	FileSystem  AttachmentMode = "file-system"
	BlockDevice AttachmentMode = "block-device"
)

// Capability combines an access mode and an attachment mode in which an alloc may claim a volume.
type Capability struct {
	Access     AccessMode     `json:"access_mode"`
	Attachment AttachmentMode `json:"attachment_mode"`
}
