package volume

// Takeover says whether another host can take a shared volume over from a lost host.
type Takeover string

// These are the values of Takeover.
const (
	TakeoverProven Takeover = ""
	TakeoverNever  Takeover = "never"
)
