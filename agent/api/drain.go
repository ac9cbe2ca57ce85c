package api

// Drain is the progress of draining a host.
type Drain struct {
	// Safe is set when nothing of any volume is on the host: no claim, nothing staged or connected,
	// and no pending call. The host can then be powered off.
	Safe bool `json:"safe"`

	// Waiting are claims whose owners are alive; a person has to stop those owners. Left is
	// everything else that is still on the host, being removed or not removable.
	Waiting []Occupant `json:"waiting"`
	Left    []Occupant `json:"left"`
}

// Occupant is one thing that keeps a host from being empty.
type Occupant struct {
	Volume  string `json:"volume,omitempty"` // empty for a mount that belongs to no known volume
	Alloc   string `json:"alloc,omitempty"`
	Owner   string `json:"owner,omitempty"` // in words
	Message string `json:"message"`
	Command string `json:"command"`        // the command to run
	Else    string `json:"else,omitempty"` // the command if that one does not help
}

// Undrained is the answer of POST /v1/node/undrain.
type Undrained struct {
	WasDraining bool `json:"was_draining"`
}
