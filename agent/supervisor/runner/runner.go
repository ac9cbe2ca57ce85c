// Package runner defines how the supervisor runs one part of a plugin. The packages command,
// container, unit and socket implement Runner. Each difference between them is a method of theirs or
// a field of Traits, so that the supervisor needs no case for each.
package runner

import (
	"context"
	"errors"
	"time"

	"github.com/volagent/volagent/agent/supervisor/pluginlog"
)

// ErrRefused marks an instance, or a definition, that must not be used until a person changes
// something.
var ErrRefused = errors.New("refused")

// Runner is one way to run a plugin. It serves one definition of one part. One goroutine at a time
// calls it, except Traits.
type Runner interface {
	// Find returns the instance that is already running, as from an earlier agent; nil if there is
	// none.
	Find(ctx context.Context) (Instance, error)
	// Start starts an instance, or waits for one that the agent does not start itself. No instance
	// runs when it is called, and Find has just found none.
	Start(ctx context.Context) (Instance, error)
	// Sweep finds an instance that runs although no start of it succeeded: the runtime or systemd
	// started it, and then did not answer. It removes the remains of an instance that has ended.
	Sweep(ctx context.Context) (Instance, error)
	// Quiet ensures that no other program starts an instance after the last one was stopped.
	Quiet(ctx context.Context)
	// Traits returns the same value each time.
	Traits() Traits
}

// Traits describes a runner.
type Traits struct {
	// Owned is set if the agent starts and stops the instances. If not, it only watches them.
	Owned bool
	// Ends is set if the agent ends the instances when the host shuts down.
	Ends bool
	// Socket is the path at which the plugin answers.
	Socket string
	// Missing is added to the message that the plugin has not opened its socket.
	Missing string
	// Log is the plugin's log. Nil: the agent cannot read it.
	Log pluginlog.Log
	// Fix says how to solve the problems that the agent finds with the place where the plugin runs.
	Fix Fix
}

// Fix holds the changes, in words for people, that give a plugin the namespaces and the user that it
// needs.
type Fix struct {
	// Mounts returns the change to share the mounts of the host below its mount root; empty if there
	// is none before the host's own mount there is shared.
	Mounts  func(mountRoot string, hostShared bool) string
	Root    string // to run as root
	Network string // to use the network of the host
}

// Instance is one running process or container of a part.
type Instance interface {
	// PID returns the id of the process, 0 if it is unknown.
	PID() int
	// Key returns a string that differs between any two instances.
	Key() string
	// Done returns a channel that is closed when the instance has ended. It is nil if only the
	// connection shows the end.
	Done() <-chan struct{}
	// Exit describes how the instance ended.
	Exit() string
	// Restarts reports whether another program starts the next instance at once. It is valid after
	// Done.
	Restarts() bool
	// Stale reports whether another instance has replaced this one.
	Stale() bool
	// Stop ends the instance and waits for its end. It returns early if ctx ends.
	Stop(ctx context.Context, grace time.Duration) error
	// Release ends the watch and leaves the instance running.
	Release() error
}
