package volume

import (
	"slices"
	"time"
)

// Scratch is what a test of a plugin may have on this host and at the storage. It
// is on record before the first call of the test and until all of it is undone,
// so that a test which was cut short leaves nothing that cannot be found.
type Scratch struct {
	ID    string    `json:"id"` // random; no volume's id is like it
	Begun time.Time `json:"begun"`
	// NodeID is where the volume is attached, if it is.
	NodeID  string          `json:"node_id,omitempty"`
	Volumes []ScratchVolume `json:"volumes,omitempty"`
	Staging string          `json:"staging,omitempty"`
	Targets []string        `json:"targets,omitempty"`
	// Dirs are the directories that were made, the innermost first.
	Dirs []string `json:"dirs,omitempty"`
	// File is what the test may have written into the first volume.
	File string `json:"file,omitempty"`

	Capability   Capability           `json:"capability"`
	MountOptions MountOptions         `json:"mount_options,omitzero"`
	Parameters   map[string]string    `json:"parameters,omitempty"`
	Topology     TopologyRequest      `json:"topology,omitzero"` // of the volumes that the test makes
	Capacity     int64                `json:"capacity,omitempty"`
	Secrets      map[string]SecretRef `json:"secrets,omitempty"`
}

// Has reports whether a storage volume is of the test.
func (s *Scratch) Has(externalID string) bool {
	return externalID != "" && slices.ContainsFunc(s.Volumes, func(v ScratchVolume) bool { return v.ExternalID == externalID })
}

// ScratchVolume is one storage volume of a test.
type ScratchVolume struct {
	// Name is what it was, or is about to be, created as. Without one it is a
	// volume of the user's own, which is never deleted.
	Name string `json:"name,omitempty"`
	// ExternalID is empty until the creation was answered.
	ExternalID string            `json:"external_id,omitempty"`
	Context    map[string]string `json:"context,omitempty"`
}
