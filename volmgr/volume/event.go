package volume

// Event describes one transition in words.
type Event struct {
	Type    string
	Volume  string
	Alloc   string
	Plugin  string
	Part    string // the plugin's part, if the plugin has several
	Step    string // the step that the event is about, if any: a Kind or an RPC
	Message string
}

// EventRefused is the type of the event for a claim that was not admitted. It is the only event
// that a caller can cause any number of times.
const EventRefused = "claim-refused"
