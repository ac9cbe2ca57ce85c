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

// Usage returns an error of the command line.
func Usage(hint, format string, args ...any) error {
	return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// Failed wraps err with the action that failed. The format follows "cannot". It returns nil if err
// is nil.
func Failed(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot %s: %w", fmt.Sprintf(format, args...), err)
}

// Hinted replaces the hint of an error that has one, such as an error from the agent.
func Hinted(err error, hint string) error {
	var e *api.Error
	if !errors.As(err, &e) {
		return err
	}
	with := *e
	with.Hint = hint
	return &with
}

// Interrupted returns the error after a signal. The message says how far the operation came.
func Interrupted(message, hint string) error {
	return &api.Error{Code: api.CodeFailed, Message: message, Hint: hint}
}

// several holds the errors of a command that did more than one thing. The first one decides the
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

// Join joins the errors that are not nil.
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

// Report writes an error to stderr and returns it, in the form that decides the exit code.
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

		if log := e.Details["plugin_log"]; log != "" {
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

// plain replaces gRPC codes by words, and the numbers of devices by their paths, as the screens do.
func (a *App) plain(text string) string {
	text = output.Devices(text, a.Env.device)
	if a.format == output.FormatWide {
		return text
	}
	return output.Words(text)
}

// longestMessage limits how much of an error's message a person sees, in characters. It is about
// eight lines of a terminal. JSON output contains the whole message.
const longestMessage = 640

// brief cuts the middle out of a long message, because its end says what happens next. A message of
// several lines is a list and stays whole.
func brief(message string) string {
	runes := []rune(message)
	if len(runes) <= longestMessage || strings.Contains(message, "\n") {
		return message
	}
	const tail = longestMessage / 3
	return string(runes[:longestMessage-tail]) + " … " + string(runes[len(runes)-tail:])
}

// Complain writes to stderr. If that fails, there is nowhere to report it.
func (a *App) Complain(format string, args ...any) {
	_, _ = fmt.Fprintf(a.Env.Stderr, format, args...)
}

// wantsJSON reports whether errors go out as JSON. If flag parsing failed, not all flags were read,
// so it searches the bare arguments.
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

// Wire gives an error its form in JSON: the whole sentence, with the code, hint and details of its
// cause.
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

// IsNotFound reports whether the agent does not know the named object.
func IsNotFound(err error) bool { return err != nil && CodeOf(err) == api.CodeNotFound }

// CodeOf returns an error's code, also for errors that did not come from the agent.
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
