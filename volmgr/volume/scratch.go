package volume

import (
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
)

// Scratch describes everything that a test of a plugin may have on this host and at the storage. It
// is on record from before the first call of the test until all of it is undone. The agent can
// therefore find every leftover of an interrupted test.
type Scratch struct {
	ID    string    `json:"id"` // random; no volume has an id like this
	Begun time.Time `json:"begun"`

	// NodeID is the node that the volume is connected to, if it is connected.
	NodeID  string          `json:"node_id,omitempty"`
	Volumes []ScratchVolume `json:"volumes,omitempty"`
	Staging string          `json:"staging,omitempty"`
	Targets []string        `json:"targets,omitempty"`

	// Dirs are the directories that the test made, innermost first.
	Dirs []string `json:"dirs,omitempty"`

	// File is the file that the test may have written into the first volume.
	File string `json:"file,omitempty"`

	Capability   call.Capability           `json:"capability"`
	MountOptions call.MountOptions         `json:"mount_options,omitzero"`
	Parameters   map[string]string         `json:"parameters,omitempty"`
	Topology     call.TopologyRequest      `json:"topology,omitzero"` // of the volumes that the test creates
	Capacity     int64                     `json:"capacity,omitempty"`
	Secrets      map[string]call.SecretRef `json:"secrets,omitempty"`
}

// Has reports whether a storage volume belongs to the test.
func (s *Scratch) Has(externalID string) bool {
	return externalID != "" && slices.ContainsFunc(s.Volumes, func(v ScratchVolume) bool { return v.ExternalID == externalID })
}

// ScratchVolume is one storage volume of a test.
type ScratchVolume struct {
	// Name is the name with which the volume was, or will be, created. A volume without a name
	// belongs to the user and is never deleted.
	Name string `json:"name,omitempty"`
	// ExternalID is empty until CreateVolume was answered.
	ExternalID string            `json:"external_id,omitempty"`
	Context    map[string]string `json:"context,omitempty"`
}
