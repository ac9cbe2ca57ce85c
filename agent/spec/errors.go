package spec

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Error is one mistake in a volume file. Its message never repeats the value of a secret.
type Error struct {
	File    string
	Line    int // from 1
	Column  int // from 1, in characters; 1 if only the line is known
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

func (d *decoder) failAt(line, column int, format string, args ...any) {
	e := &Error{File: d.file, Line: max(line, 1), Column: max(column, 1), Message: fmt.Sprintf(format, args...)}
	d.errs = append(d.errs, e)
}

func (d *decoder) fail(n *yaml.Node, format string, args ...any) {
	d.failAt(n.Line, n.Column, format, args...)
}

var (
	yamlLine   = regexp.MustCompile(`^line (\d+): `)
	yamlAnchor = regexp.MustCompile(`^unknown anchor '.*' referenced$`)
)

// syntax records an error of the YAML parser. It replaces the one parser message that repeats the
// input. Such a message could reveal a password: the parser reads a text that starts with "*" as an
// alias.
func (d *decoder) syntax(err error) {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 0 // the default is the first line

	if m := yamlLine.FindStringSubmatch(message); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			line = n
		}
		message = message[len(m[0]):]
	}

	if countsFromZero(message) {
		line++
	}

	if yamlAnchor.MatchString(message) {
		message = noAnchors + "; a text that starts with * needs quotes"
	}

	d.failAt(min(line, d.lines), 1, "%s", message)
}

// countsFromZero recognizes the messages of the YAML parser's second stage. In these messages the
// first line of a file is line 0, or the line is missing.
func countsFromZero(message string) bool {
	rest, ok := strings.CutPrefix(message, "did not find expected ")
	if !ok {
		return false
	}

	for _, token := range []string{"<", "node content", "'-' indicator", "key", "','"} {
		if strings.HasPrefix(rest, token) {
			return true
		}
	}

	return false
}

const noAnchors = "anchors and aliases are not supported"
