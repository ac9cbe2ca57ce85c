package api

import "net/http"

// Code classifies an error. Each code has one HTTP status and one exit code of volctl.
type Code string

const (
	// CodeFailed is any failure that no other code describes. Exit code 1.
	CodeFailed Code = "failed"

	// CodeInvalid is a request that can never succeed in this form: a bad id, a missing or unknown
	// field, a bad size. Exit code 2.
	CodeInvalid Code = "invalid"

	// CodeNotFound is an unknown volume, claim or plugin. Exit code 3.
	CodeNotFound Code = "not_found"

	// CodeRefused is a request that conflicts with the current state: in use, no such capability,
	// an immutable field. Exit code 4.
	CodeRefused Code = "refused"

	// CodeTimeout is a wait that ended before the expected state was reached. Exit code 5.
	CodeTimeout Code = "timeout"

	// CodePluginUnavailable is a plugin that is not ready. Exit code 6.
	CodePluginUnavailable Code = "plugin_unavailable"

	// CodeUnreachable comes from the client alone: no agent answers on the socket. Exit code 7.
	CodeUnreachable Code = "unreachable"

	// CodePermission is a caller without permission for the request, or a socket that the caller
	// cannot open for lack of permission. Exit code 8.
	CodePermission Code = "permission_denied"
)

// Error is the body of every answer that is not a success, under "error".
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// Hint is the command or the change that solves the problem, if there is one.
	Hint    string            `json:"hint,omitempty"`
	Details map[string]string `json:"details,omitempty"`
}

// Error implements error with the message alone. Programs show the hint separately.
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
