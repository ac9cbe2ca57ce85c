package api

import "time"

// MaxState is the largest backup that is taken, in bytes.
const MaxState = 4 << 30

// Restore is what became of a backup, or would with dry_run.
type Restore struct {
	// Node is the host that the backup is of, Taken when it was made; zero is not known.
	Node  string    `json:"node"`
	Taken time.Time `json:"taken,omitzero"`
	// SameNode is set where claims and what was mounted count: it is this host's, at the
	// same data dir. Otherwise registrations alone are taken, and Why says why.
	SameNode bool       `json:"same_node"`
	Why      string     `json:"why,omitempty"`
	DryRun   bool       `json:"dry_run,omitempty"`
	Items    []Restored `json:"items"`
}

// Outcomes of a Restored.
const (
	OutcomeRestored = "restored"
	OutcomePresent  = "present" // it was there already, and stays as it is
	OutcomeRefused  = "refused" // something here stands in its way
	OutcomeDropped  = "dropped" // it is of no use here
)

// Restored is one thing that a backup holds.
type Restored struct {
	Kind    string `json:"kind"` // volume, plugin, snapshot, debt, or docker and podman for their names
	ID      string `json:"id"`
	Outcome string `json:"outcome"`
	// Claims are allocs whose claims came with it.
	Claims []string `json:"claims,omitempty"`
	// Notes say what differs, what was left out, and what is to be seen to.
	Notes []string `json:"notes,omitempty"`
}
