package volume

// Event is one transition in words.
type Event struct {
	Type    string
	Volume  string
	Alloc   string
	Plugin  string
	Part    string // of the plugin, if it is one of several's
	Step    string // the step that it is about, if it is one's: a Kind or an RPC
	Message string
}

// EventRefused is the type of the event that a claim was not admitted. It is
// the one that whoever asks can cause for ever.
const EventRefused = "claim-refused"
