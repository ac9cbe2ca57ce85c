package plugin

// Fence is the proof that a driver permits for a host that is gone.
type Fence string

// These are the values of Fence.
const (
	FenceNone          Fence = ""
	FenceDetach        Fence = "detach"
	FenceDetachWhenOff Fence = "detach-when-off"
	FenceHook          Fence = "hook"
)
