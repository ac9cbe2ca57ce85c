package volume

import (
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/call"
)

// Without says how forcefully the agent unmounts if it detaches a claim without calling the plugin.
// Each value also permits the milder ways before it.
type Without string

// These are the ways to unmount. The zero value means that the plugin unmounts.
const (
	WithPlugin Without = ""
	ByUmount   Without = "umount" // calls umount(2), which fails while a process uses the mount
	ByForce    Without = "force"  // then uses MNT_FORCE, which aborts requests to the storage
	ByLazy     Without = "lazy"   // then uses MNT_DETACH, which hides the mount at once; the mount ends with its last user
)

// ladder lists the ways to unmount without the plugin, from the mildest to the most forceful.
var ladder = []Without{ByUmount, ByForce, ByLazy}

// Check returns an error if the value is unknown.
func (w Without) Check() error {
	if w != WithPlugin && !slices.Contains(ladder, w) {
		return Errorf(ErrInvalid, "unknown way to unmount %q", string(w)).WithHint("one of umount, force, lazy")
	}
	return nil
}

// Steps returns the ways to unmount that w permits, with the mildest first. It is empty if the
// plugin unmounts.
func (w Without) Steps() []Without { return ladder[:slices.Index(ladder, w)+1] }

// Stronger returns the next more forceful way to unmount, or the zero value if w is the most
// forceful.
func (w Without) Stronger() Without {
	if i := slices.Index(ladder, w); i+1 < len(ladder) {
		return ladder[i+1]
	}
	return WithPlugin
}

// PendingCall is a call that the agent skipped, because the host undid the side without the plugin.
// The agent makes the call when the plugin is ready.
type PendingCall struct {
	Kind  call.Method `json:"kind"` // NodeUnpublish or NodeUnstage
	Path  string      `json:"path"`
	Alloc string      `json:"alloc,omitempty"` // alloc whose target the call unpublishes; empty for NodeUnstage
	// Mount is the mount that was at Path. It is zero if the mount is unknown. The agent must not
	// let the call unmount any other mount.
	Mount MountIdentity `json:"mount,omitzero"`
}

// Unseen is a lazily unmounted mount that may still be in use.
type Unseen struct {
	Path  string   `json:"path"`
	Users []string `json:"users,omitempty"` // descriptions of the users at the time of the unmount
}

// words describes the mount and its users.
func (u Unseen) words() string {
	s := u.Path + " was unmounted lazily: processes with open files there can still use it"
	if len(u.Users) > 0 {
		s += " (" + strings.Join(u.Users, "; ") + ")"
	}
	return s
}
