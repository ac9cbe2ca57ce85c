package owner

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/volmgr/volume"
)

// Options configures a Watcher.
type Options struct {
	Boot string // boot id of the host
	Log  hclog.Logger

	// MaxPidfds is the maximum number of processes that the watcher watches through a pidfd. It
	// polls all further processes, every PollEvery. 0 means half of RLIMIT_NOFILE for MaxPidfds and
	// 1 s for PollEvery.
	MaxPidfds int
	PollEvery time.Duration
	// AskEvery is the interval at which the watcher asks systemd about all units, because a signal
	// may get lost. 0 means 30 s.
	AskEvery time.Duration
	// Bus is the connection to systemd. The caller closes it. If Bus is nil, the watcher opens its
	// own connection.
	Bus *systemd.Bus
	// Mounts reports the state of mounts. If Mounts is nil, no mount can be an owner.
	Mounts Mounts
	// References counts the containers that use a volume of a container runtime. If References is
	// nil, no container runtime uses the agent.
	References func(o volume.Owner) int
}

// Mounts reads the mount table of the kernel. Its methods never wait for storage.
type Mounts interface {
	// Gone reports whether the mount m, which the agent made at the path at, no longer exists.
	Gone(m volume.MountIdentity, at string) bool
	// Changes calls fn after each change of the mount table, until ctx ends. It waits at least the
	// time interval between two calls of fn.
	Changes(ctx context.Context, interval time.Duration, fn func()) error
}
