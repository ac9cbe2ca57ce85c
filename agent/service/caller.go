package service

import (
	"os"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/volmgr/volume"
)

// Caller is the process that sent a request, with its rights.
type Caller struct {
	peer.Peer

	// MayWrite permits the caller to change state, to name secrets for the agent to read, and to
	// see plugin logs and backups. A log may contain secrets that the agent does not know and
	// cannot mask. Every caller may read all other state.
	MayWrite bool
}

// CheckWrite returns an error if the caller has no permission to change state or to read logs and
// backups.
func (c Caller) CheckWrite() error {
	if c.MayWrite {
		return nil
	}
	return &api.Error{
		Code:    api.CodePermission,
		Message: c.String() + " may read the state, but may not change it or read logs and backups",
		Hint:    "run it as root, or as a member of the socket's group (which is root-equivalent)",
	}
}

// RuntimeCaller returns the rights of a container runtime. It refuses runtimes that do not run as
// root, because a runtime can mount any volume.
func RuntimeCaller(p peer.Peer) (Caller, error) {
	switch {
	case !p.Known:
		return Caller{}, volume.Errorf(volume.ErrRefused, "the kernel does not identify the caller")
	case p.UID != 0 && int(p.UID) != os.Geteuid():
		return Caller{}, volume.Errorf(volume.ErrRefused, "uid %d may not use volumes of volagent; only root's docker and podman may", p.UID).
			WithHint("run podman as root; rootless podman can use a directory at which a volume is mounted")
	default:
		return Caller{Peer: p, MayWrite: true}, nil
	}
}
