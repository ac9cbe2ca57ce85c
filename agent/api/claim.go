package api

import "time"

// Claim states, in the order a claim goes through them.
const (
	ClaimPending            = "pending"
	ClaimTaken              = "taken"
	ClaimUnpublishing       = "unpublishing"
	ClaimNodeDetached       = "node-detached"
	ClaimControllerDetached = "controller-detached"
	ClaimReadyToFree        = "ready-to-free"
)

// ClaimRequest asks for a volume on behalf of an alloc. What is left empty
// takes the mode in force, else the first listed capability that fits.
type ClaimRequest struct {
	ReadOnly       bool     `json:"read_only,omitempty"`
	AccessMode     string   `json:"access_mode,omitempty"`
	AttachmentMode string   `json:"attachment_mode,omitempty"`
	MountFlags     []string `json:"mount_flags,omitempty"`
	// At is an absolute path where the volume is bound as well.
	At string `json:"at,omitempty"`
	// Owner is "none" or empty: the claim lives until it is detached.
	Owner string `json:"owner,omitempty"`
}

// Claim is one alloc's right to one volume.
type Claim struct {
	Volume         string `json:"volume"`
	PluginID       string `json:"plugin_id"`
	Alloc          string `json:"alloc"`
	State          string `json:"state"`
	Wanted         bool   `json:"wanted"`
	ReadOnly       bool   `json:"read_only"`
	AccessMode     string `json:"access_mode"`
	AttachmentMode string `json:"attachment_mode"`
	Owner          string `json:"owner"` // "none"
	// Path is where the volume is for this alloc: At if asked for, else Target.
	Path   string    `json:"path"`
	Target string    `json:"target"`
	At     string    `json:"at,omitempty"`
	Since  time.Time `json:"since"`
	// Adopted tells a claim that was rebuilt from what is mounted, after the
	// state database was lost. It counts as a writer.
	Adopted bool `json:"adopted,omitempty"`
	// Note is set where the state alone misleads ("plugin unavailable").
	Note string `json:"note,omitempty"`
}
