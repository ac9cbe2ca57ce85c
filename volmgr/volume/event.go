package volume

// EventRefused is the type of the event that a claim was not admitted. It is
// the one that whoever asks can cause for ever.
const EventRefused = "claim-refused"
