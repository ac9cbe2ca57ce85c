package volume

import (
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/call"
)

// Without selects the means of a detach that does not call the plugin. Each value also allows the
// means of all values before it.
type Without string

// These are the means of a detach. The zero value uses the plugin.
const (
	WithPlugin Without = ""
	ByUmount   Without = "umount" // umount(2), which fails while a process uses the mount
	ByForce    Without = "force"  // then MNT_FORCE, which aborts requests to the storage
	ByLazy     Without = "lazy"   // then MNT_DETACH, which hides the mount at once; the mount ends with its last user
)

// ladder lists the means without the plugin, from the mildest to the strongest.
var ladder = []Without{ByUmount, ByForce, ByLazy}

// Check returns an error if the value is unknown.
func (w Without) Check() error {
	if w != WithPlugin && !slices.Contains(ladder, w) {
		return Errorf(ErrInvalid, "unknown way to unmount %q", string(w)).WithHint("one of umount, force, lazy")
	}
	return nil
}

// Steps returns the means that w allows, mildest first. It is empty if w uses the plugin.
func (w Without) Steps() []Without { return ladder[:slices.Index(ladder, w)+1] }

// Stronger returns the next stronger means, or the zero value after the strongest.
func (w Without) Stronger() Without {
	if i := slices.Index(ladder, w); i+1 < len(ladder) {
		return ladder[i+1]
	}
	return WithPlugin
}

// PendingCall is a call that the agent skipped because the host undid the side without the plugin.
// The agent makes the call when the plugin is ready.
type PendingCall struct {
	Kind  call.Method `json:"kind"` // NodeUnpublish or NodeUnstage
	Path  string      `json:"path"`
	Alloc string      `json:"alloc,omitempty"` // the alloc of the target
	// Mount is the mount that was at Path. It is zero if that mount is unknown. The call must not
	// unmount any other mount.
	Mount MountIdentity `json:"mount,omitzero"`
}

// Unseen is a lazily unmounted mount that may still be in use.
type Unseen struct {
	Path  string   `json:"path"`
	Users []string `json:"users,omitempty"` // the users at the time of the unmount, in words
}

// words describes the mount and its users.
func (u Unseen) words() string {
	s := u.Path + " was unmounted lazily: processes with open files there can still use it"
	if len(u.Users) > 0 {
		s += " (" + strings.Join(u.Users, "; ") + ")"
	}
	return s
}
