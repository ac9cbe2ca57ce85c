package api

// Drain is the progress of draining a host.
type Drain struct {
	// Safe is set when the host no longer uses any volume: it has no claim, no staged or connected
	// volume, and no pending call. The host can then be powered off.
	Safe bool `json:"safe"`

	// Waiting lists the claims whose owners are alive. A person must stop these owners. Left lists
	// everything else that is still on the host. The agent is removing it, or cannot remove it.
	Waiting []Occupant `json:"waiting"`
	Left    []Occupant `json:"left"`
}

// Occupant is a claim, volume or mount that the drain still has to remove from the host.
type Occupant struct {
	Volume  string `json:"volume,omitempty"` // empty for a mount that belongs to no known volume
	Alloc   string `json:"alloc,omitempty"`
	Owner   string `json:"owner,omitempty"` // a description of the owner
	Message string `json:"message"`
	Command string `json:"command"`        // the command that removes the claim, volume or mount
	Else    string `json:"else,omitempty"` // the command to use if Command does not help
}

// Undrained is the answer of POST /v1/node/undrain.
type Undrained struct {
	WasDraining bool `json:"was_draining"`
}
