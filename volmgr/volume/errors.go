package volume

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Sentinel errors. One place (agent/apiserver) turns them into API codes; a
// message that wraps one says what, where and what to do.
var (
	// ErrInvalid: the request can never succeed as it stands.
	ErrInvalid = errors.New("invalid")
	// ErrNotFound: no such volume, claim or plugin.
	ErrNotFound = errors.New("not found")
	// ErrRefused: the state refuses it (in use, no capability, immutable).
	ErrRefused = errors.New("refused")
	// ErrTimeout: what was waited for did not come in time.
	ErrTimeout = errors.New("timed out")
	// ErrStopping: the agent is being stopped. What was asked for stands, and
	// the next agent goes on with it.
	ErrStopping = errors.New("the agent is being stopped")
	// ErrPluginUnavailable: the plugin is not ready.
	ErrPluginUnavailable = errors.New("plugin unavailable")
)

// Error carries one of the sentinels, a message for people, and the command or
// change that helps.
type Error struct {
	Kind    error // one of the sentinels
	Message string
	Hint    string
}

// Error implements error with the message alone.
func (e *Error) Error() string { return e.Message }

// Unwrap lets errors.Is find the sentinel.
func (e *Error) Unwrap() error { return e.Kind }

// Errorf builds an Error of a kind.
func Errorf(kind error, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// WithHint returns the error with its hint set. A hint that begins with "volctl "
// is a Command.
func (e *Error) WithHint(format string, args ...any) *Error {
	if e.Hint = fmt.Sprintf(format, args...); strings.HasPrefix(format, "volctl ") {
		e.Hint = Command(format, args...)
	}
	return e
}

// Retry says what has to happen before a failed call is worth another try.
type Retry string

// Retry classes.
const (
	// RetryBackoff: the same call may succeed by itself later.
	RetryBackoff Retry = "backoff"
	// RetryChange: arguments, secrets or the plugin must change first.
	RetryChange Retry = "change"
	// RetryNever: the plugin cannot do this.
	RetryNever Retry = "never"
)

// Codes that are not gRPC's, used where the failed step was not an RPC or
// where an RPC answered OK and the host shows otherwise.
const (
	CodeUnverified = "Unverified" // the plugin answered OK, the mount table says no
	CodeHost       = "Host"       // a step of our own failed
)

// CallError is how one step of a volume's life failed: an RPC or a host step.
type CallError struct {
	Step    string // "NodeStageVolume", "bind"
	Code    string // a gRPC code by name ("DeadlineExceeded"), CodeUnverified or CodeHost
	Message string // the plugin's words
	Retry   Retry
	// Answered is false where the plugin may still be working on the call: a
	// deadline, a cancellation, a lost connection.
	Answered bool
	// Unsent is set where the plugin never got the call: that says nothing of any
	// other call.
	Unsent bool
	// Remedy is the command that ends what stands in the way, if it is known.
	Remedy string
	// HeldBy names who keeps a mount busy ("pid 4711 rsync (backup.service), cwd").
	HeldBy []string
}

// namedHolders is how many of those who keep a mount busy an error names. HeldBy has
// all of them.
const namedHolders = 3

// Error implements error. What is no code of the plugin's is not shown as one.
func (e *CallError) Error() string {
	words := e.Step + ": "
	if e.Code != CodeHost && e.Code != CodeUnverified {
		words += e.Code + ": "
	}
	words += e.Message
	if len(e.HeldBy) > 0 {
		words += ", held by " + strings.Join(e.HeldBy[:min(len(e.HeldBy), namedHolders)], "; ")
	}
	if more := len(e.HeldBy) - namedHolders; more > 0 {
		words += fmt.Sprintf(" and %d more", more)
	}
	return words
}

// unknowns are the gRPC codes that leave open what a call did (CSI spec, "Error
// Scheme"): plain Go errors of a driver arrive as the last two.
var unknowns = []string{"Canceled", "DeadlineExceeded", "Unavailable", "DataLoss", "Unknown", "Internal"}

// Unknown reports whether it is open what the call did. Aborted is not: another
// call is pending, and this one did nothing.
func (e *CallError) Unknown() bool { return !e.Answered || slices.Contains(unknowns, e.Code) }

// Awaited is how a wait for a volume ended in vain, with how the step that it
// waited for stands.
type Awaited struct {
	Err error
	At  Attempt
}

// Error implements error with the words of Err.
func (a *Awaited) Error() string { return a.Err.Error() }

// Unwrap lets errors.As find both the reason and the failed call.
func (a *Awaited) Unwrap() []error {
	if a.At.Err == nil {
		return []error{a.Err}
	}
	return []error{a.Err, a.At.Err}
}

// Final reports whether waiting alone cannot help.
func (e *CallError) Final() bool { return e.Retry != RetryBackoff }

// refusals are the gRPC codes by which a plugin says that it did not begin. It
// is undone all the same, but it has no effect that comes later.
var refusals = []string{
	"InvalidArgument", "AlreadyExists", "OutOfRange", "Unimplemented", "Unauthenticated", "PermissionDenied",
	"NotFound", "FailedPrecondition", "ResourceExhausted",
}

// Uncertain reports whether a failed call may have an effect that is yet to come.
func (e *CallError) Uncertain() bool {
	return !e.Answered || !slices.Contains(refusals, e.Code)
}

// HostError is a failed step of our own; it is retried with backoff.
func HostError(step string, err error) *CallError {
	return &CallError{Step: step, Code: CodeHost, Message: err.Error(), Retry: RetryBackoff, Answered: true}
}
