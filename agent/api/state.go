package api

import "time"

// MaxState is the largest backup that the agent accepts, in bytes.
const MaxState = 4 << 30

// Restore is the result of restoring a backup. With dry_run it is the result that a restore would
// have.
type Restore struct {
	// Node is the host of the backup. Taken is the time of the backup; zero means unknown.
	Node  string    `json:"node"`
	Taken time.Time `json:"taken,omitzero"`

	// SameNode is set if the backup is of this host with the same data dir. Only then does a
	// restore include claims and mounts. Otherwise it includes registrations alone, and Why gives
	// the reason.
	SameNode bool       `json:"same_node"`
	Why      string     `json:"why,omitempty"`
	DryRun   bool       `json:"dry_run,omitempty"`
	Items    []Restored `json:"items"`
}

// Outcomes of a Restored.
const (
	OutcomeRestored = "restored"
	OutcomePresent  = "present" // the object exists already and stays unchanged
	OutcomeRefused  = "refused" // an object on this host conflicts with it
	OutcomeDropped  = "dropped" // it has no use on this host
)

// Restored is one object of a backup.
type Restored struct {
	Kind    string `json:"kind"` // volume, plugin, snapshot, debt, or docker and podman for their names
	ID      string `json:"id"`
	Outcome string `json:"outcome"`

	// Claims are the allocs whose claims were restored with the volume.
	Claims []string `json:"claims,omitempty"`

	// Notes list differences, omissions and remaining work for the operator.
	Notes []string `json:"notes,omitempty"`
}
