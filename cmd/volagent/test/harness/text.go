package harness

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

// CodeOf returns the API code of an error. It returns "" for nil, and the error's text for an error
// without an API code.
func CodeOf(err error) api.Code {
	var e *api.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Code
	default:
		return api.Code(err.Error())
	}
}

// Lines iterates over the lines of a text without their newlines.
func Lines(s string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for line := range strings.Lines(s) {
			if !yield(strings.TrimSuffix(line, "\n")) {
				return
			}
		}
	}
}

// FileSize returns the size of a file, or 0 if there is no file.
func FileSize(file string) int64 {
	info, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return info.Size()
}

// CopyFile copies a file.
func CopyFile(t *testing.T, from, to string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
