package csiclient

import (
	"context"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// maxMessage limits how much of a plugin's message the client keeps, in bytes.
const maxMessage = 1024

// callError converts the error of a call into a *volume.CallError. A nil wire means that the call
// was never sent.
func (c *Client) callError(step call.Method, err error, w *wire) error {
	code, message, isStatus := codes.Unknown, err.Error(), true
	switch st, ok := status.FromError(err); {
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case ok:
		code, message = st.Code(), st.Message()
	default:
		isStatus = false
	}

	if code == codes.Canceled && c.closed.Load() {
		// The caller did not cancel the call: the plugin's connection was closed during it.
		code, message = codes.Unavailable, "the connection to the plugin was closed"
	}
	return &volume.CallError{
		Step:     string(step),
		Code:     code.String(),
		Message:  c.words(message),
		Retry:    retryOf(step, code),
		Answered: isStatus && answered(code, w),
		Unsent:   w == nil || !w.sent.Load(),
	}
}

// answered reports whether the plugin is certainly not working on the call any longer.
func answered(code codes.Code, w *wire) bool {
	switch {
	case w == nil:
		return true
	case code == codes.DeadlineExceeded, code == codes.Canceled:
		// Even if the plugin sent the code itself, the operation that it started may continue.
		return false
	default:
		return w.answered.Load() || !w.sent.Load()
	}
}

// retryOf is the table of retry classes for the codes (CSI spec, section "Error Scheme", and the
// tables of the RPCs). If the outcome is unknown, the class is RetryBackoff: the agent sends the
// same call, or its opposite, again.
func retryOf(step call.Method, code codes.Code) volume.Retry {
	switch code {
	case codes.InvalidArgument, codes.AlreadyExists, codes.OutOfRange:
		return volume.RetryChange // the arguments must change
	case codes.Unauthenticated, codes.PermissionDenied:
		return volume.RetryChange // the secrets or grants must change
	case codes.Unimplemented:
		return volume.RetryNever
	case codes.FailedPrecondition:
		if step == call.NodeExpand {
			return volume.RetryNever
		}
		return volume.RetryBackoff // in use elsewhere; that may end
	case codes.Aborted:
		return volume.RetryBackoff // another operation is pending on the volume
	case codes.NotFound, codes.ResourceExhausted:
		return volume.RetryBackoff // the next try verifies or frees the resource
	default:
		// Canceled, DeadlineExceeded, Unavailable, Unknown, Internal, DataLoss, and codes that gRPC
		// has not defined yet.
		return volume.RetryBackoff
	}
}

// refused returns an error of the client's own about a call. Either the call cannot be sent as
// requested, or the plugin's OK answer is unusable.
func refused(step call.Method, code string, retry volume.Retry, message string) error {
	return &volume.CallError{Step: string(step), Code: code, Message: message, Retry: retry, Answered: true}
}

// noMessage replaces an empty message of a plugin.
const noMessage = "(the plugin gave no message)"

// words makes a plugin's message safe to store and show: no secrets, one line, no control
// characters, valid UTF-8, at most maxMessage bytes.
func (c *Client) words(s string) string {
	// Secrets come first: the later steps could change a secret so that it is no longer recognized.
	s = c.opts.Scrubber.Scrub(s)
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		default:
			return r
		}
	}, s)
	// Removed characters may have separated the parts of a secret.
	s = c.opts.Scrubber.Scrub(strings.Join(strings.Fields(s), " "))
	if s == "" {
		return noMessage
	}
	return truncate(s, maxMessage)
}

// truncate cuts s to at most limit bytes, between characters.
func truncate(s string, limit int) string {
	if len(s) <= limit {
		return s
	}

	const mark = "…"
	cut := limit - len(mark)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + mark
}
