package csiclient

import (
	"context"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volagent/volagent/volmgr/volume"
)

// maxMessage is how much of a plugin's words is kept, in bytes.
const maxMessage = 1024

// callError turns whatever a call ended in into a *volume.CallError. A nil
// wire means that the call was never sent.
func (c *Client) callError(step volume.Kind, err error, w *wire) error {
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
		// The caller has given up nothing: the plugin went away under the call.
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

// answered reports whether the plugin is surely not working on the call.
func answered(code codes.Code, w *wire) bool {
	switch {
	case w == nil:
		return true
	case code == codes.DeadlineExceeded, code == codes.Canceled:
		// Even if the plugin itself said so: what it started may go on.
		return false
	default:
		return w.answered.Load() || !w.sent.Load()
	}
}

// retryOf is the table of what a caller does about a code (CSI spec, section
// "Error Scheme", and the tables of the RPCs). Where the outcome is unknown
// the class is RetryBackoff: the same call, or its negation, is sent again.
func retryOf(step volume.Kind, code codes.Code) volume.Retry {
	switch code {
	case codes.InvalidArgument, codes.AlreadyExists, codes.OutOfRange:
		return volume.RetryChange // the arguments must change
	case codes.Unauthenticated, codes.PermissionDenied:
		return volume.RetryChange // the secrets or grants must change
	case codes.Unimplemented:
		return volume.RetryNever
	case codes.FailedPrecondition:
		if step == volume.NodeExpand {
			return volume.RetryNever
		}
		return volume.RetryBackoff // in use elsewhere: it may be cleared
	case codes.Aborted:
		return volume.RetryBackoff // another operation is pending on the volume
	case codes.NotFound, codes.ResourceExhausted:
		return volume.RetryBackoff // verify or free, meanwhile
	default:
		// Canceled, DeadlineExceeded, Unavailable, Unknown, Internal, DataLoss,
		// and codes that nobody has defined yet.
		return volume.RetryBackoff
	}
}

// refused is an error of our own about a call: one that cannot be sent as
// asked, or an answer that is OK and useless.
func refused(step volume.Kind, code string, retry volume.Retry, message string) error {
	return &volume.CallError{Step: string(step), Code: code, Message: message, Retry: retry, Answered: true}
}

// noMessage stands for the words of a plugin that said nothing.
const noMessage = "(the plugin gave no message)"

// words makes a plugin's message fit to be stored and shown: no secrets, one
// line, no control characters, valid UTF-8, at most maxMessage bytes.
func (c *Client) words(s string) string {
	// Secrets first: what follows could cut or bend one beyond recognition.
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
	// What was taken out may have kept the parts of a secret apart.
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
