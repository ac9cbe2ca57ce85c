package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/output"
)

// Usage returns an error for a wrong command line.
func Usage(hint, format string, args ...any) error {
	return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// Failed returns the error "cannot ACTION: err". The arguments format and args describe the action.
// If err is nil, Failed returns nil.
func Failed(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot %s: %w", fmt.Sprintf(format, args...), err)
}

// Hinted returns err with its hint replaced. If err is not an api.Error, it has no hint, and Hinted
// returns err unchanged.
func Hinted(err error, hint string) error {
	var e *api.Error
	if !errors.As(err, &e) {
		return err
	}
	with := *e
	with.Hint = hint
	return &with
}

// Interrupted returns the error for a command that a signal has interrupted. The message says how
// far the operation has got.
func Interrupted(message, hint string) error {
	return &api.Error{Code: api.CodeFailed, Message: message, Hint: hint}
}

// several holds the errors of a command that works on several objects. The first error decides the
// exit code.
type several []error

func (s several) Error() string {
	lines := make([]string, len(s))
	for i, err := range s {
		lines[i] = err.Error()
	}
	return strings.Join(lines, "\n")
}

func (s several) Unwrap() []error { return s }

// Join combines all errors that are not nil.
func Join(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return several(errs)
}

// Report writes an error to stderr. It returns the error that decides the exit code. If the code of
// the command has not started, it returns a usage error.
func (a *App) Report(err error) error {
	if !a.running && CodeOf(err) == api.CodeFailed {
		err = Usage("volctl --help", "%s", err)
	}

	if a.wantsJSON() {
		body, jsonErr := output.Marshal(api.ErrorBody{Error: Wire(err)})
		if jsonErr != nil {
			body = []byte(jsonErr.Error())
		}
		a.Complain("%s\n", body)
		return err
	}

	var many several
	if !errors.As(err, &many) {
		many = several{err}
	}

	for _, one := range many {
		e := Wire(one)
		a.Complain("volctl: %s\n", output.Printable(brief(a.plain(e.Message))))

		if log := e.Details[api.DetailLog]; log != "" {
			for line := range strings.Lines(log) {
				a.Complain("plugin log: %s\n", output.OneLine(line))
			}
		}

		if e.Hint != "" {
			a.Complain("hint: %s\n", output.Printable(e.Hint))
		}
	}

	return err
}

// plain replaces gRPC codes with words, and device numbers with paths.
func (a *App) plain(text string) string {
	text = output.Devices(text, a.Env.device)
	if a.format == output.FormatWide {
		return text
	}
	return output.Words(text)
}

// longestMessage is the maximum length of an error message on a screen, in characters. It
// corresponds to about eight lines of a terminal. JSON output contains the complete message.
const longestMessage = 640

// brief shortens a long message by removing the middle. It keeps the end, because the end says what
// happens next. It does not shorten a message of several lines, because such a message is a list.
func brief(message string) string {
	runes := []rune(message)
	if len(runes) <= longestMessage || strings.Contains(message, "\n") {
		return message
	}
	const tail = longestMessage / 3
	return string(runes[:longestMessage-tail]) + " … " + string(runes[len(runes)-tail:])
}

// Complain writes a message to stderr. It ignores write errors, because there is no other place to
// report them.
func (a *App) Complain(format string, args ...any) {
	_, _ = fmt.Fprintf(a.Env.Stderr, format, args...)
}

// wantsJSON reports whether errors must be printed as JSON. If the parser failed, it may not have
// read all flags, so wantsJSON searches the raw arguments.
func (a *App) wantsJSON() bool {
	if a.running {
		return a.format == output.FormatJSON || a.json
	}

	args := a.Env.Args
	for i, arg := range args {
		name := strings.TrimLeft(arg, "-")
		switch {
		case arg == "--":
			return false
		case !strings.HasPrefix(arg, "-"):
			continue
		case name == "json", name == "output=json", name == "o=json", name == "ojson":
			return true
		case (name == "o" || name == "output") && i+1 < len(args) && args[i+1] == "json":
			return true
		}
	}

	return false
}

// Wire converts an error to its JSON form. The result has the complete message of err. Its code,
// hint and details come from the api.Error that caused err.
func Wire(err error) *api.Error {
	out := api.Error{Code: CodeOf(err), Message: err.Error()}
	var (
		e     *api.Error
		files spec.Errors
	)

	switch {
	case errors.As(err, &e):
		out.Hint, out.Details = e.Hint, e.Details
	case errors.As(err, &files):
		first := files[0]
		out.Details = map[string]string{"file": first.File, "line": strconv.Itoa(first.Line), "column": strconv.Itoa(first.Column)}
	case errors.Is(err, context.DeadlineExceeded):
		out.Message = strings.ReplaceAll(out.Message, context.DeadlineExceeded.Error(), "it took too long")
		out.Hint = "systemctl status volagent"
	case errors.Is(err, context.Canceled):
		out.Message = strings.ReplaceAll(out.Message, context.Canceled.Error(), "interrupted")
	}

	return &out
}

// IsNotFound reports whether err means that the agent does not know the object.
func IsNotFound(err error) bool { return err != nil && CodeOf(err) == api.CodeNotFound }

// CodeOf returns the code of an error. It also works for errors that do not come from the agent.
func CodeOf(err error) api.Code {
	var (
		e     *api.Error
		files spec.Errors
	)

	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Code
	case errors.As(err, &files):
		return api.CodeInvalid
	case errors.Is(err, context.DeadlineExceeded):
		return api.CodeTimeout
	default:
		return api.CodeFailed
	}
}
