package api

import "time"

// MaxState is the largest backup that the agent accepts, in bytes.
const MaxState = 4 << 30

// Restore is the result of a restore. With dry_run, it predicts the result.
type Restore struct {
	// Node is the host of the backup. Taken is the time of the backup, or zero if the time is
	// unknown.
	Node  string    `json:"node"`
	Taken time.Time `json:"taken,omitzero"`

	// SameNode is set if the backup belongs to this host and to the same data dir. Only then does a
	// restore include claims and mounts. Otherwise it includes only the registrations, and Why
	// contains the reason.
	SameNode bool       `json:"same_node"`
	Why      string     `json:"why,omitempty"`
	DryRun   bool       `json:"dry_run,omitempty"`
	Items    []Restored `json:"items"`
}

// The outcomes of restoring one object.
const (
	OutcomeRestored = "restored"
	OutcomePresent  = "present" // the object exists already and does not change
	OutcomeRefused  = "refused" // the object conflicts with another one on this host
	OutcomeDropped  = "dropped" // the object would be useless on this host
)

// Restored is the result for one object of a backup.
type Restored struct {
	Kind    string `json:"kind"` // volume, plugin, snapshot, leftover; or docker, podman for a volume name
	ID      string `json:"id"`
	Outcome string `json:"outcome"`

	// Claims lists the allocs whose claims were restored together with the volume.
	Claims []string `json:"claims,omitempty"`

	// Notes list differences, omissions and remaining tasks for the operator.
	Notes []string `json:"notes,omitempty"`
}
