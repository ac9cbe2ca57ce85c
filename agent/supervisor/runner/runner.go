// Package runner defines the interface through which the supervisor runs one part of a plugin. The
// packages command, container, unit and socket implement Runner. All differences between them are
// in their methods and in Traits, so the supervisor treats them alike.
package runner

import (
	"context"
	"errors"
	"time"

	"github.com/volagent/volagent/agent/supervisor/pluginlog"
)

// ErrRefused means that an instance or a definition must not be used until an operator fixes a
// problem.
var ErrRefused = errors.New("refused")

// Runner is one way to run a plugin. A Runner serves one definition of one part. Only one goroutine
// at a time calls its methods. Any goroutine may call Traits.
type Runner interface {
	// Find returns an instance that already runs, for example from an earlier agent, or nil if none
	// runs.
	Find(ctx context.Context) (Instance, error)
	// Start starts an instance. If the agent does not start the instances itself, Start waits for
	// one. Callers call Start only after Find has found no instance.
	Start(ctx context.Context) (Instance, error)
	// Sweep returns an instance that runs although its start failed. That happens if the runtime or
	// systemd started it and then did not answer. Sweep also removes the remains of an ended
	// instance.
	Sweep(ctx context.Context) (Instance, error)
	// Quiet ensures that no other program starts an instance after the last one was stopped.
	Quiet(ctx context.Context)
	// Traits returns the constant properties of the runner.
	Traits() Traits
}

// Traits describes a runner.
type Traits struct {
	// Owned is true if the agent starts and stops the instances. Otherwise it only monitors them.
	Owned bool
	// Ends is true if the agent ends the instances when the host shuts down.
	Ends bool
	// Socket is the path of the plugin's socket.
	Socket string
	// Missing is appended to the message that the plugin has not opened its socket.
	Missing string
	// Log is the plugin's log, or nil if the agent cannot read the log.
	Log pluginlog.Log
	// Fix describes how to solve problems with the plugin's namespaces or its user.
	Fix Fix
}

// Fix holds instructions for the operator. They give a plugin the namespaces and the user that it
// needs.
type Fix struct {
	// Mounts returns the instruction that makes the plugin share the host's mounts below its mount
	// root. It returns "" if the host's own mount must be shared first.
	Mounts  func(mountRoot string, hostShared bool) string
	Root    string // instruction to run as root
	Network string // instruction to use the network of the host
}

// Instance is one running process or container of a part.
type Instance interface {
	// PID returns the id of the process, or 0 if it is unknown.
	PID() int
	// Key returns a string that identifies the instance. Any two instances have different keys.
	Key() string
	// Done returns a channel that is closed when the instance has ended. Done returns nil if only
	// the loss of the connection shows the end.
	Done() <-chan struct{}
	// Exit describes how the instance ended.
	Exit() string
	// Restarts reports whether another program starts the next instance at once. The result is
	// valid after Done is closed.
	Restarts() bool
	// Stale reports whether another instance has replaced this one.
	Stale() bool
	// Stop ends the instance and waits for its end. It returns early if ctx ends.
	Stop(ctx context.Context, grace time.Duration) error
	// Release stops monitoring the instance and leaves it running.
	Release() error
}
