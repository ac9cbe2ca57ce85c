package plugin

import (
	"slices"
	"time"

	"github.com/volagent/volagent/volmgr/call"
)

// Scratch describes every object that a plugin test may have created on this host or in the storage
// system. The agent stores Scratch before the first call of the test, and deletes it after all
// these objects have been removed. The agent can therefore find every leftover of an interrupted
// test.
type Scratch struct {
	ID    string    `json:"id"` // random, and different from every volume id
	Begun time.Time `json:"begun"`

	// NodeID is the node to which the volume is connected. It is empty if the volume is not
	// connected.
	NodeID  string          `json:"node_id,omitempty"`
	Volumes []ScratchVolume `json:"volumes,omitempty"`
	Staging string          `json:"staging,omitempty"`
	Targets []string        `json:"targets,omitempty"`

	// Dirs lists the directories that the test made, with the innermost directory first.
	Dirs []string `json:"dirs,omitempty"`

	// File is the path of a file that the test may have written to its first volume.
	File string `json:"file,omitempty"`

	Capability   call.Capability           `json:"capability"`
	MountOptions call.MountOptions         `json:"mount_options,omitzero"`
	Parameters   map[string]string         `json:"parameters,omitempty"`
	Topology     call.TopologyRequest      `json:"topology,omitzero"` // topology of the volumes that the test creates
	Capacity     int64                     `json:"capacity,omitempty"`
	Secrets      map[string]call.SecretRef `json:"secrets,omitempty"`
}

// Name returns the name of the test's volume, as users and the storage system see it.
func (s *Scratch) Name() string { return "volagent-test-" + s.ID }

// Paths returns the paths at which the test has, or may have, a mount.
func (s *Scratch) Paths() []string { return append([]string{s.Staging}, s.Targets...) }

// Has reports whether the storage volume with the given external id belongs to the test.
func (s *Scratch) Has(externalID string) bool {
	return externalID != "" && slices.ContainsFunc(s.Volumes, func(v ScratchVolume) bool { return v.ExternalID == externalID })
}

// ScratchVolume is one storage volume of a test.
type ScratchVolume struct {
	// Name is the name in the CreateVolume call, which the agent may not have sent yet. A volume
	// without a name belongs to the user, and the agent never deletes it.
	Name string `json:"name,omitempty"`
	// ExternalID is empty until the plugin answers CreateVolume.
	ExternalID string            `json:"external_id,omitempty"`
	Context    map[string]string `json:"context,omitempty"`
}
