package spec

import (
	"fmt"
	"strings"
)

// Error is one mistake in a volume file. Its message never repeats the value of a secret.
type Error struct {
	File    string
	Line    int // counted from 1
	Column  int // counted from 1, in characters; 1 if only the line is known
	Message string
}

// Error returns "file:line:column: message", in the form of compiler messages.
func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// Errors are all mistakes of a file, in the order in which the decoder found them.
type Errors []*Error

// Error returns all mistakes, one on each line.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find the first [*Error].
func (e Errors) Unwrap() []error {
	errs := make([]error, len(e))
	for i, one := range e {
		errs[i] = one
	}
	return errs
}
