package usage

import (
	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/mounts"
)

// Refuse returns an error for a call that cannot continue because the filesystem has shut down.
func (at Place) Refuse(id string) error {
	return csierr.Preconditionf("the filesystem of volume %q is shut down after an error (%v); unpublish and unstage it, and stage it again", id, at.Dead)
}

// Kind classifies the topmost mount at a path.
type Kind int

// These are the kinds of mounts.
const (
	KindNone    Kind = iota // the path is not a mount point
	KindOurs                // a mount of the volume's directory or filesystem
	KindNode                // a bind mount of the node of one of the volume's loop devices
	KindForeign             // any other mount
)

// Place is the state of a staging path or target path.
type Place struct {
	mounts.PathState
	Kind Kind
	Loop *loopdev.LoopDevice // the loop device whose node or filesystem is mounted
	Dead error               // the error of a filesystem that has shut down and does not answer
	// set for a KindForeign node of a device that once belonged to the volume; see strayNode
	Stray bool
}
