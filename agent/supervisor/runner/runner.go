// Package runner defines the interface through which the supervisor runs one part of a plugin. The
// packages command, container, unit and socket implement Runner. Because all differences between
// them are in their methods and in Traits, the supervisor treats them in the same way.
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

// Runner runs one definition of one part of a plugin. Only one goroutine at a time calls its
// methods, except Traits, which any goroutine may call.
type Runner interface {
	// Find returns an instance that is already running, for example because an earlier agent
	// started it. It returns nil if there is none.
	Find(ctx context.Context) (Instance, error)
	// Start starts an instance. If another program starts the instances, Start waits for one.
	// Callers call Start only after Find has found no instance.
	Start(ctx context.Context) (Instance, error)
	// Sweep returns an instance that runs although its start failed. This can happen if the
	// container runtime or systemd starts the instance but does not answer. Sweep also removes the
	// remains of an instance that has ended.
	Sweep(ctx context.Context) (Instance, error)
	// Quiet ensures that no other program starts a new instance after the last instance was
	// stopped.
	Quiet(ctx context.Context)
	// Traits returns the properties of the runner, which never change.
	Traits() Traits
}

// Traits contains the constant properties of a runner.
type Traits struct {
	// Owned is true if the agent starts and stops the instances. Otherwise the agent only monitors
	// them.
	Owned bool
	// Ends is true if the agent ends the instances when the host shuts down.
	Ends bool
	// Socket is the path of the plugin's socket.
	Socket string
	// Missing is a text that is appended to the message that the plugin has not opened its socket.
	Missing string
	// Log is the log of the plugin, or nil if the agent cannot read the log.
	Log pluginlog.Log
	// Fix contains instructions for problems with the plugin's namespaces or its user.
	Fix Fix
}

// Fix contains instructions that tell the operator how to give a plugin the namespaces and the user
// that it needs.
type Fix struct {
	// Mounts returns the instruction that makes the plugin share the host's mounts below its mount
	// root. It returns "" if the operator must first share the host's own mount.
	Mounts  func(mountRoot string, hostShared bool) string
	Root    string // the instruction to run the plugin as root
	Network string // the instruction to use the network namespace of the host
}

// Instance is one running process or container of a part.
type Instance interface {
	// PID returns the process id of the instance, or 0 if the id is unknown.
	PID() int
	// Key returns a string that identifies the instance. Different instances have different keys.
	Key() string
	// Done returns a channel that is closed when the instance has ended. It returns nil if the
	// agent can notice the end only by the loss of the connection.
	Done() <-chan struct{}
	// Exit describes how the instance ended.
	Exit() string
	// Restarts reports whether another program starts the next instance at once. The result is
	// valid only after Done is closed.
	Restarts() bool
	// Stale reports whether another instance has replaced this instance.
	Stale() bool
	// Stop ends the instance and waits until it has ended. It returns early if ctx ends.
	Stop(ctx context.Context, grace time.Duration) error
	// Release stops monitoring the instance and leaves it running.
	Release() error
}
