package csiclient

import (
	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volagent/volagent/volmgr/call"
)

// accessMode converts an access mode to CSI. The two modes that distinguish one writer from several
// writers on a node exist only for plugins with the capability SINGLE_NODE_MULTI_WRITER. For other
// plugins, accessMode converts both modes to SINGLE_NODE_WRITER.
func accessMode(m call.AccessMode, multiWriter bool) csi.VolumeCapability_AccessMode_Mode {
	switch m {
	case call.SingleNodeReaderOnly:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
	case call.SingleNodeWriter:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	case call.SingleNodeSingleWriter:
		if multiWriter {
			return csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		}
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	case call.SingleNodeMultiWriter:
		if multiWriter {
			return csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		}
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	case call.MultiNodeReaderOnly:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case call.MultiNodeSingleWriter:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER
	case call.MultiNodeMultiWriter:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	default:
		// A plugin rejects UNKNOWN with INVALID_ARGUMENT, which is the right error for an invalid
		// mode.
		return csi.VolumeCapability_AccessMode_UNKNOWN
	}
}

// capability converts a volume capability to CSI. Block devices have no file system type, mount
// flags or mount group.
func capability(c call.Capability, fsType string, flags []string, group string, multiWriter bool) *csi.VolumeCapability {
	out := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: accessMode(c.Access, multiWriter)}}
	if c.Attachment == call.BlockDevice {
		out.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		out.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: flags, VolumeMountGroup: group}}
	}
	return out
}

// capabilities converts several capabilities to CSI. If two of them have the same form in CSI, the
// result contains that form only once.
func capabilities(all []call.Capability, fsType string, flags []string, multiWriter bool) []*csi.VolumeCapability {
	type shape struct {
		mode       csi.VolumeCapability_AccessMode_Mode
		attachment call.AttachmentMode
	}
	seen := map[shape]bool{}
	var out []*csi.VolumeCapability
	for _, c := range all {
		s := shape{accessMode(c.Access, multiWriter), c.Attachment}
		if !seen[s] {
			seen[s] = true
			out = append(out, capability(c, fsType, flags, "", multiWriter))
		}
	}

	return out
}

// reveal returns the plain values of secrets for one request.
func reveal(secrets call.Secrets) map[string]string {
	if len(secrets) == 0 {
		return nil
	}

	out := make(map[string]string, len(secrets))
	for name, secret := range secrets {
		out[name] = secret.Reveal()
	}
	return out
}

func topologies(all []map[string]string) []*csi.Topology {
	var out []*csi.Topology
	for _, segments := range all {
		out = append(out, &csi.Topology{Segments: segments})
	}
	return out
}

func segments(all []*csi.Topology) []map[string]string {
	var out []map[string]string
	for _, t := range all {
		out = append(out, t.GetSegments())
	}
	return out
}

// capacityRange converts the limits of a size to CSI. It returns nil if any size is acceptable.
func capacityRange(least, most int64) *csi.CapacityRange {
	if least <= 0 && most <= 0 {
		return nil
	}
	return &csi.CapacityRange{RequiredBytes: least, LimitBytes: most}
}
