package csitest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// request is a call that has just arrived. It also contains data that the rules check but that the
// journal must not contain.
type request struct {
	call         Call
	capabilities []*csi.VolumeCapability
	secrets      map[string]string
	takesSecrets bool
	msg          any
	size         *csi.CapacityRange
	create       *csi.CreateVolumeRequest // set only for CreateVolume
	seen         sight
}

// describe reads the fields that several CSI messages have in common. It uses the getters of the
// messages.
func (p *Plugin) describe(fullMethod string, msg any) request {
	r := request{msg: msg, call: Call{Method: fullMethod[strings.LastIndexByte(fullMethod, '/')+1:]}}
	c := &r.call
	if m, ok := msg.(interface{ GetVolumeId() string }); ok {
		c.Volume = m.GetVolumeId()
	}
	if m, ok := msg.(interface{ GetNodeId() string }); ok {
		c.NodeID = m.GetNodeId()
	}
	if m, ok := msg.(interface{ GetStagingTargetPath() string }); ok {
		c.StagingPath = m.GetStagingTargetPath()
	}
	if m, ok := msg.(interface{ GetTargetPath() string }); ok {
		c.TargetPath = m.GetTargetPath()
	}
	if m, ok := msg.(interface{ GetVolumePath() string }); ok {
		c.TargetPath = m.GetVolumePath()
	}
	if m, ok := msg.(interface{ GetReadonly() bool }); ok {
		c.ReadOnly = m.GetReadonly()
	}
	if m, ok := msg.(interface{ GetPublishContext() map[string]string }); ok {
		c.PublishContext = m.GetPublishContext()
	}
	if m, ok := msg.(interface{ GetVolumeContext() map[string]string }); ok {
		c.VolumeContext = m.GetVolumeContext()
	}
	if m, ok := msg.(interface{ GetParameters() map[string]string }); ok {
		c.Parameters = m.GetParameters()
	}
	if m, ok := msg.(interface{ GetSecrets() map[string]string }); ok {
		r.secrets, r.takesSecrets = m.GetSecrets(), true
		c.SecretKeys = slices.Sorted(maps.Keys(r.secrets))
		c.SecretSums = sums(r.secrets)
	}

	if m, ok := msg.(interface{ GetVolumeCapability() *csi.VolumeCapability }); ok && m.GetVolumeCapability() != nil {
		r.capabilities = []*csi.VolumeCapability{m.GetVolumeCapability()}
	}
	if m, ok := msg.(interface {
		GetVolumeCapabilities() []*csi.VolumeCapability
	}); ok {
		r.capabilities = m.GetVolumeCapabilities()
	}
	if m, ok := msg.(*csi.CreateVolumeRequest); ok {
		r.create = m
		c.Name, c.Volume = m.GetName(), p.newID(m.GetName())
	}

	p.describeMore(&r)
	words := make([]string, 0, len(r.capabilities))

	for _, one := range r.capabilities {
		words = append(words, capabilityWords(one))
		c.MountGroup = one.GetMount().GetVolumeMountGroup()
	}

	c.Capability = strings.Join(words, " ")
	r.seen = look(*c)
	return r
}

// describeMore reads the fields that only a few CSI messages have.
func (p *Plugin) describeMore(r *request) {
	c := &r.call
	if m, ok := r.msg.(interface {
		GetMutableParameters() map[string]string
	}); ok {
		c.Mutable = m.GetMutableParameters()
	}
	if m, ok := r.msg.(interface{ GetCapacityRange() *csi.CapacityRange }); ok {
		r.size = m.GetCapacityRange()
		c.Least, c.Most = r.size.GetRequiredBytes(), r.size.GetLimitBytes()
	}
	if m, ok := r.msg.(interface {
		GetMaxEntries() int32
		GetStartingToken() string
	}); ok {
		c.Entries, c.Token = m.GetMaxEntries(), m.GetStartingToken()
	}
	if m, ok := r.msg.(interface{ GetSnapshotId() string }); ok {
		c.Snapshot = m.GetSnapshotId()
	}
	if m, ok := r.msg.(interface{ GetGroupSnapshotId() string }); ok {
		c.Group = m.GetGroupSnapshotId()
	}
	if m, ok := r.msg.(interface{ GetSnapshotIds() []string }); ok {
		c.Members = m.GetSnapshotIds()
	}

	switch m := r.msg.(type) {
	case *csi.CreateVolumeRequest:
		c.Places = placeWords(m.GetAccessibilityRequirements())
		c.Snapshot = m.GetVolumeContentSource().GetSnapshot().GetSnapshotId()
		if id := m.GetVolumeContentSource().GetVolume().GetVolumeId(); id != "" {
			c.Sources = []string{id}
		}
	case *csi.CreateSnapshotRequest:
		c.Name, c.Volume, c.Snapshot = m.GetName(), m.GetSourceVolumeId(), p.newSnapshotID(m.GetName())
	case *csi.ListSnapshotsRequest:
		if id := m.GetSourceVolumeId(); id != "" {
			c.Sources = []string{id}
		}
	case *csi.CreateVolumeGroupSnapshotRequest:
		c.Name, c.Group, c.Sources = m.GetName(), p.newSnapshotID(m.GetName()), m.GetSourceVolumeIds()
	case *csi.NodeGetVolumeHealthRequest:
		c.TargetPath = m.GetVolumePublishPath()
	}
}

// placeWords formats topology requirements as one string. Equal requirements have equal strings.
// Without requirements, the string is empty.
func placeWords(r *csi.TopologyRequirement) string {
	if r == nil {
		return ""
	}

	all := func(places []*csi.Topology) []map[string]string {
		segments := make([]map[string]string, len(places))
		for i, p := range places {
			segments[i] = p.GetSegments()
		}
		return segments
	}

	return fmt.Sprintf("requisite %v preferred %v", all(r.GetRequisite()), all(r.GetPreferred()))
}

// capabilityWords formats a capability as one word. Equal capabilities have equal words.
func capabilityWords(c *csi.VolumeCapability) string {
	mode := c.GetAccessMode().GetMode().String()
	switch {
	case c.GetBlock() != nil:
		return mode + ":block"
	case c.GetMount() != nil:
		return strings.Join([]string{mode, "mount", c.GetMount().GetFsType(), strings.Join(c.GetMount().GetMountFlags(), ",")}, ":")
	default:
		return mode + ":unset"
	}
}

// maxString is CSI's general limit for a string, in bytes.
const maxString = 128

// newID returns the id of the volume with the given name. A name always has the same id, so that a
// caller can repeat CreateVolume.
func (p *Plugin) newID(name string) string {
	if name == "" {
		return ""
	}
	if id := p.cfg.IDPrefix + name; len(id) <= maxString {
		return id
	}
	return p.cfg.IDPrefix + hash(name)
}

// newSnapshotID returns the id of the snapshot or group with the given name. A name always has the
// same id.
func (p *Plugin) newSnapshotID(name string) string {
	if name == "" {
		return ""
	}
	return p.newID("snap-" + name)
}

// hash returns a file name for an id, because the id itself may not be a valid file name.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

// Sum returns the checksum that the journal contains instead of the value of a secret.
func Sum(value string) string {
	sum := sha256.Sum256([]byte(value))
	return hex.EncodeToString(sum[:])
}

func sums(secrets map[string]string) map[string]string {
	if len(secrets) == 0 {
		return nil
	}

	all := make(map[string]string, len(secrets))
	for key, value := range secrets {
		all[key] = Sum(value)
	}
	return all
}
