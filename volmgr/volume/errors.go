package volume

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/remedy"
)

// Each error of this package wraps one of these sentinels. The package agent/service converts the
// sentinels to API codes. The message of an error names the failed action, the object, and a
// helpful action.
var (
	// ErrInvalid means that the request cannot succeed unless it is changed.
	ErrInvalid = errors.New("invalid")
	// ErrNotFound means that the volume, claim or plugin does not exist.
	ErrNotFound = errors.New("not found")
	// ErrRefused means that the current state does not allow the request. For example, the volume
	// is in use or a field is immutable.
	ErrRefused = errors.New("refused")
	// ErrStorageTaken means that another volume already uses the storage. It wraps ErrRefused.
	ErrStorageTaken = fmt.Errorf("storage taken: %w", ErrRefused)
	// ErrTimeout means that an expected result did not arrive in time.
	ErrTimeout = errors.New("timed out")
	// ErrStopping means that the agent is being stopped. The request is stored, and the agent
	// continues it after its next start.
	ErrStopping = errors.New("the agent is being stopped")
	// ErrPluginUnavailable means that the plugin is not ready.
	ErrPluginUnavailable = errors.New("plugin unavailable")
)

// Error combines a sentinel, a message for people, and help. The help is either a remedy or a text.
type Error struct {
	Kind    error // one of the sentinels above
	Message string
	Hint    string        // advice as a text, for a problem that no command solves
	Remedy  remedy.Remedy // the command that helps, if any
}

// Error implements error. It returns only the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the sentinel for errors.Is.
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

// remedyOf returns the remedy of an error, or an empty one if the error has none.
func remedyOf(err error) remedy.Remedy {
	var e *Error
	if !errors.As(err, &e) {
		return remedy.Remedy{}
	}
	return e.Remedy
}

// Retry says when a retry of a failed call can succeed.
type Retry string

// These are the values of Retry.
const (
	// RetryBackoff means that the same call may succeed later without any change.
	RetryBackoff Retry = "backoff"
	// RetryChange means that the arguments, the secrets or the plugin must change before a retry
	// can succeed.
	RetryChange Retry = "change"
	// RetryNever means that the plugin cannot do the step at all.
	RetryNever Retry = "never"
)

// These constants are the names of the gRPC codes.
const (
	CodeOK                 = "OK"
	CodeCanceled           = "Canceled"
	CodeUnknown            = "Unknown"
	CodeInvalidArgument    = "InvalidArgument"
	CodeDeadlineExceeded   = "DeadlineExceeded"
	CodeNotFound           = "NotFound"
	CodeAlreadyExists      = "AlreadyExists"
	CodePermissionDenied   = "PermissionDenied"
	CodeResourceExhausted  = "ResourceExhausted"
	CodeFailedPrecondition = "FailedPrecondition"
	CodeAborted            = "Aborted"
	CodeOutOfRange         = "OutOfRange"
	CodeUnimplemented      = "Unimplemented"
	CodeInternal           = "Internal"
	CodeUnavailable        = "Unavailable"
	CodeDataLoss           = "DataLoss"
	CodeUnauthenticated    = "Unauthenticated"
)

// These codes do not come from gRPC. The agent uses them if a step on the host failed, or if the
// plugin answered OK but the host shows a different result.
const (
	CodeUnverified = "Unverified" // the plugin answered OK, but the mount table shows a different result
	CodeHost       = "Host"       // a step that the agent does itself failed
)

// CallError describes the failure of one step of a volume. The step is either an RPC or an action
// on the host.
type CallError struct {
	Step    string // name of the step, such as "NodeStageVolume" or "bind"
	Code    string // name of a gRPC code, such as "DeadlineExceeded", or CodeUnverified or CodeHost
	Message string // the plugin's message
	Retry   Retry

	// Answered is false if the plugin may still be working on the call. For example, the call
	// exceeded its deadline or was cancelled, or the connection was lost.
	Answered bool

	// Unsent is set if the plugin never received this call. It may have received earlier attempts.
	Unsent bool

	// Lost is set if another host made the call for this one, and its agent is gone or was restarted.
	// The outcome of the call is unknown, and another host can repeat the call.
	Lost bool

	// Remedy solves the problem. It is empty if no remedy is known.
	Remedy remedy.Remedy

	// HeldBy lists the processes and other users that keep a mount busy, such as "pid 4711 rsync
	// (backup.service), cwd".
	HeldBy []string
}

// namedHolders is the maximum number of users of a mount that an error message names. HeldBy lists
// all of them.
const namedHolders = 3

// Error implements error. The message contains the code only if the code comes from the plugin.
func (e *CallError) Error() string {
	words := e.Step + ": "
	if e.Code == CodeHeld {
		return e.Message
	}
	if e.Code != CodeHost && e.Code != CodeUnverified && e.Code != CodeNoExecutor {
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

// unknowns lists the gRPC codes that leave open whether the call had an effect (see "Error Scheme"
// in the CSI specification). A driver that returns a plain Go error produces one of the last two
// codes.
var unknowns = []string{CodeCanceled, CodeDeadlineExceeded, CodeUnavailable, CodeDataLoss, CodeUnknown, CodeInternal}

// Unknown reports whether the effect of the call is unknown. With the code Aborted, the effect is
// known: another call was in progress, and this call did nothing.
func (e *CallError) Unknown() bool { return !e.Answered || slices.Contains(unknowns, e.Code) }

// Final reports whether a retry without any change cannot succeed.
func (e *CallError) Final() bool { return e.Retry != RetryBackoff }

// refusals lists the gRPC codes by which a plugin says that it did not begin the call. The agent
// undoes such a call like any failed call, but does not watch for a late effect.
var refusals = []string{
	CodeInvalidArgument, CodeAlreadyExists, CodeOutOfRange, CodeUnimplemented, CodeUnauthenticated, CodePermissionDenied,
	CodeNotFound, CodeFailedPrecondition, CodeResourceExhausted,
}

// Uncertain reports whether a failed call may still have a late effect.
func (e *CallError) Uncertain() bool {
	return !e.Answered || !slices.Contains(refusals, e.Code)
}

// HostError returns the error of a step that the agent does itself. The agent retries such a step
// with backoff.
func HostError(step string, err error) *CallError {
	return &CallError{Step: step, Code: CodeHost, Message: err.Error(), Retry: RetryBackoff, Answered: true}
}
