package volume

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/remedy"
)

// The sentinel errors. One package (agent/apiserver) turns them into API codes. A message that
// wraps one says which action failed, on which object, and which action helps.
var (
	// ErrInvalid: the request cannot succeed unless it is changed.
	ErrInvalid = errors.New("invalid")
	// ErrNotFound: no such volume, claim or plugin.
	ErrNotFound = errors.New("not found")
	// ErrRefused: the current state does not allow it (in use, no capability, immutable).
	ErrRefused = errors.New("refused")
	// ErrTimeout: the awaited result did not come in time.
	ErrTimeout = errors.New("timed out")
	// ErrStopping: the agent is being stopped. The request is stored, and the next agent continues
	// it.
	ErrStopping = errors.New("the agent is being stopped")
	// ErrPluginUnavailable: the plugin is not ready.
	ErrPluginUnavailable = errors.New("plugin unavailable")
)

// Error carries one of the sentinels, a message for people, and what helps: a remedy, or advice in
// words.
type Error struct {
	Kind    error // one of the sentinels
	Message string
	Hint    string        // advice that is no command
	Remedy  remedy.Remedy // a command, as a value
}

// Error implements error. It returns only the message.
func (e *Error) Error() string { return e.Message }

// Unwrap lets errors.Is find the sentinel.
func (e *Error) Unwrap() error { return e.Kind }

// Errorf returns an Error of the given kind.
func Errorf(kind error, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// WithHint sets the hint and returns the error.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// WithRemedy sets the remedy and returns the error.
func (e *Error) WithRemedy(r remedy.Remedy) *Error {
	e.Remedy = r
	return e
}

// remedyOf returns the remedy of an error, if it has one.
func remedyOf(err error) remedy.Remedy {
	var e *Error
	if !errors.As(err, &e) {
		return remedy.Remedy{}
	}
	return e.Remedy
}

// Retry says which condition must be met before a failed call is worth a retry.
type Retry string

// The Retry classes.
const (
	// RetryBackoff: the same call may succeed by itself later.
	RetryBackoff Retry = "backoff"
	// RetryChange: arguments, secrets or the plugin must change first.
	RetryChange Retry = "change"
	// RetryNever: the plugin cannot do this.
	RetryNever Retry = "never"
)

// Codes that are not from gRPC. They are used if the failed step was not an RPC, or if an RPC
// answered OK and the host shows another result.
const (
	CodeUnverified = "Unverified" // the plugin answered OK, but the mount table disagrees
	CodeHost       = "Host"       // a step of the agent itself failed
)

// CallError is the failure of one step of a volume: an RPC or a step on the host.
type CallError struct {
	Step    string // "NodeStageVolume", "bind"
	Code    string // a gRPC code by name ("DeadlineExceeded"), CodeUnverified or CodeHost
	Message string // the plugin's message
	Retry   Retry

	// Answered is false if the plugin may still be working on the call: after a deadline, a
	// cancellation or a lost connection.
	Answered bool

	// Unsent is set if the plugin never received the call. It says nothing about other calls.
	Unsent bool

	// Remedy removes the obstacle; it is empty if none is known.
	Remedy remedy.Remedy

	// HeldBy lists the users that keep a mount busy ("pid 4711 rsync (backup.service), cwd").
	HeldBy []string
}

// namedHolders is the number of users that an error message names. HeldBy has all of them.
const namedHolders = 3

// Error implements error. It shows only codes that come from the plugin.
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

// unknowns are the gRPC codes that leave the effect of a call open (CSI specification, "Error
// Scheme"). Plain Go errors of a driver arrive as the last two.
var unknowns = []string{"Canceled", "DeadlineExceeded", "Unavailable", "DataLoss", "Unknown", "Internal"}

// Unknown reports whether the effect of the call is unknown. It is known for the code Aborted:
// another call is in progress, and this one did nothing.
func (e *CallError) Unknown() bool { return !e.Answered || slices.Contains(unknowns, e.Code) }

// Final reports whether waiting alone cannot help.
func (e *CallError) Final() bool { return e.Retry != RetryBackoff }

// refusals are the gRPC codes by which a plugin says that it did not begin. The call is undone all
// the same, but it cannot have a late effect.
var refusals = []string{
	"InvalidArgument", "AlreadyExists", "OutOfRange", "Unimplemented", "Unauthenticated", "PermissionDenied",
	"NotFound", "FailedPrecondition", "ResourceExhausted",
}

// Uncertain reports whether a failed call may still have a late effect.
func (e *CallError) Uncertain() bool {
	return !e.Answered || !slices.Contains(refusals, e.Code)
}

// HostError returns the error of a step that the agent itself failed to do. It is retried with
// backoff.
func HostError(step string, err error) *CallError {
	return &CallError{Step: step, Code: CodeHost, Message: err.Error(), Retry: RetryBackoff, Answered: true}
}
