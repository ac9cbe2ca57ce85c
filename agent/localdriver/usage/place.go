package usage

import (
	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/mounts"
)

// Refuse returns the error for a call that needs the filesystem, which has shut down.
func (at Place) Refuse(id string) error {
	return csierr.Preconditionf("the filesystem of volume %q is shut down after an error (%v); unpublish and unstage it, and stage it again", id, at.Dead)
}

// Kind classifies the mount at a path.
type Kind int

// The kinds of mounts at a path.
const (
	KindNone    Kind = iota // no mount exactly at the path
	KindOurs                // the volume's directory or filesystem
	KindNode                // the node of a loop device of the volume
	KindForeign             // any other mount
)

// Place is the state of a staging or target path.
type Place struct {
	mounts.PathState
	Kind  Kind
	Loop  *loopdev.LoopDevice // the device of the node or of the filesystem
	Dead  error               // the filesystem has shut down and does not answer
	Stray bool                // set for a KindForeign node that once showed the volume, see strayNode
}
