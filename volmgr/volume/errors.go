package volume

import (
	"errors"
	"fmt"
	"slices"
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

// WithHint returns the error with its hint set.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
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
	// Remedy is the command that ends what stands in the way, if it is known.
	Remedy string
}

// Error implements error.
func (e *CallError) Error() string { return e.Step + ": " + e.Code + ": " + e.Message }

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
