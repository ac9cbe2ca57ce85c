package api

import "net/http"

// Code classifies an error. Each code has one HTTP status and one exit code of volctl.
type Code string

const (
	// CodeFailed means a failure that no other code describes. Exit code 1.
	CodeFailed Code = "failed"

	// CodeInvalid means a request that can never succeed in this form: it has a bad id, a missing
	// or unknown field, or a bad size. Exit code 2.
	CodeInvalid Code = "invalid"

	// CodeNotFound means that the volume, claim or plugin does not exist. Exit code 3.
	CodeNotFound Code = "not_found"

	// CodeRefused means a request that conflicts with the current state: the volume is in use, the
	// plugin lacks a capability, or a field is immutable. Exit code 4.
	CodeRefused Code = "refused"

	// CodeTimeout means that a wait ended before the expected state was reached. Exit code 5.
	CodeTimeout Code = "timeout"

	// CodePluginUnavailable means that a plugin is not ready. Exit code 6.
	CodePluginUnavailable Code = "plugin_unavailable"

	// CodeUnreachable means that no agent answers on the socket. Only the client makes this error.
	// Exit code 7.
	CodeUnreachable Code = "unreachable"

	// CodePermission means that the caller has no permission for the request, or no permission to
	// open the socket. Exit code 8.
	CodePermission Code = "permission_denied"
)

// Error is the body of every unsuccessful answer, under the key "error".
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// Hint is a command or a change that solves the problem, if there is one.
	Hint    string            `json:"hint,omitempty"`
	Details map[string]string `json:"details,omitempty"`
}

// These are the keys of an error's Details.
const (
	DetailStep   = "step"        // the CSI call, or the step on this host, that failed
	DetailCode   = "grpc_code"   // the code of the failed step, as in Attempt.Code
	DetailSaid   = "plugin_said" // the plugin's message
	DetailLog    = "plugin_log"  // the last lines of the plugin's log
	DetailHeldBy = "held_by"     // the processes that keep a mount busy
	DetailRetry  = "retry"       // the condition for the next attempt, as in Attempt.Retry
	DetailTries  = "tries"       // the number of attempts
	DetailFirst  = "first"       // the time of the first attempt
	DetailNext   = "next"        // the time of the next attempt
)

// Error returns only the message. Programs show the hint separately.
func (e *Error) Error() string { return e.Message }

// ErrorBody is the JSON form of an Error.
type ErrorBody struct {
	Error *Error `json:"error"`
}

// HTTPStatus returns the HTTP status for an error of this code.
func (c Code) HTTPStatus() int {
	switch c {
	case CodeInvalid:
		return http.StatusBadRequest
	case CodeNotFound:
		return http.StatusNotFound
	case CodeRefused:
		return http.StatusConflict
	case CodeTimeout:
		return http.StatusGatewayTimeout
	case CodePluginUnavailable:
		return http.StatusServiceUnavailable
	case CodePermission:
		return http.StatusForbidden
	default:
		return http.StatusInternalServerError
	}
}
