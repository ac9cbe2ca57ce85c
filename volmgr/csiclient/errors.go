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

// maxMessage is the maximum length, in bytes, of a plugin's message. The client truncates longer
// messages.
const maxMessage = 1024

// callError converts the error of a call into a *volume.CallError. If w is nil, the call was never
// sent.
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
		// The caller did not cancel the call. Therefore the client itself was closed during the
		// call.
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

// answered reports whether the plugin has certainly stopped working on the call.
func answered(code codes.Code, w *wire) bool {
	switch {
	case w == nil:
		return true
	case code == codes.DeadlineExceeded, code == codes.Canceled:
		// Even if the plugin itself sent this code, the plugin may still be working on the call.
		return false
	default:
		return w.answered.Load() || !w.sent.Load()
	}
}

// retryOf returns the retry class of a code. The classes follow the section "Error Scheme" of the
// CSI spec and its tables of the RPCs. If the outcome of a call is unknown, the class is
// RetryBackoff. After a pause, the agent then sends the same call or the call that undoes it.
func retryOf(step call.Method, code codes.Code) volume.Retry {
	switch code {
	case codes.InvalidArgument, codes.AlreadyExists, codes.OutOfRange:
		return volume.RetryChange // the caller must change the arguments
	case codes.Unauthenticated, codes.PermissionDenied:
		return volume.RetryChange // the operator must change the secrets or grants
	case codes.Unimplemented:
		return volume.RetryNever
	case codes.FailedPrecondition:
		if step == call.NodeExpand {
			return volume.RetryNever
		}
		return volume.RetryBackoff // the volume is in use elsewhere, and that use may end
	case codes.Aborted:
		return volume.RetryBackoff // another operation is pending on the volume
	case codes.NotFound, codes.ResourceExhausted:
		return volume.RetryBackoff // the object or the resource may be available again at the next attempt
	default:
		// These codes are Canceled, DeadlineExceeded, Unavailable, Unknown, Internal, DataLoss, and
		// any code that gRPC does not define yet.
		return volume.RetryBackoff
	}
}

// refused returns an error of the client itself. The client uses it if it cannot send the call as
// requested, or if it cannot use the plugin's OK answer.
func refused(step call.Method, code string, retry volume.Retry, message string) error {
	return &volume.CallError{Step: string(step), Code: code, Message: message, Retry: retry, Answered: true}
}

// noMessage replaces an empty error message of a plugin.
const noMessage = "(the plugin gave no message)"

// words makes a plugin's message safe to store and show. The result contains no secrets and no
// control characters. It is one line of valid UTF-8 of at most maxMessage bytes.
func (c *Client) words(s string) string {
	// The client masks secrets first, because the later steps could change a secret so that Scrub
	// no longer recognizes it.
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
	// The second Scrub masks secrets that appeared because characters between their parts were
	// removed.
	s = c.opts.Scrubber.Scrub(strings.Join(strings.Fields(s), " "))
	if s == "" {
		return noMessage
	}
	return truncate(s, maxMessage)
}

// truncate shortens s to at most limit bytes, without splitting a character.
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
