package api

// Drain is how far a host is that is being drained.
type Drain struct {
	// Safe is set when nothing of any volume is on the host: no claim, nothing staged
	// or attached, and no call owed. It can be powered off.
	Safe bool `json:"safe"`
	// Waiting are claims whose owners live; a person has to stop those. Left is what is
	// being taken off the host, or cannot be.
	Waiting []Occupant `json:"waiting"`
	Left    []Occupant `json:"left"`
}

// Occupant is one thing that keeps a host from being empty.
type Occupant struct {
	Volume  string `json:"volume,omitempty"` // empty for a mount that no volume explains
	Alloc   string `json:"alloc,omitempty"`
	Owner   string `json:"owner,omitempty"` // in words
	Message string `json:"message"`
	Command string `json:"command"`        // what to type
	Else    string `json:"else,omitempty"` // and where that does not help
}

// Undrained is the answer of POST /v1/node/undrain.
type Undrained struct {
	WasDraining bool `json:"was_draining"`
}
