package api_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

// TestCheckNote checks that the limit for a note counts characters, not bytes, and that CheckNote
// rejects unprintable characters.
func TestCheckNote(t *testing.T) {
	for note, want := range map[string]string{
		"":                                   "",
		"restore test, ask the storage team": "",
		strings.Repeat("ö", api.MaxNote):     "",
		strings.Repeat("x", api.MaxNote+1):   "note has 201 characters; at most 200 are allowed",
		"two\nlines":                         "note contains the unprintable character U+000A",
		"a\ttab":                             "note contains the unprintable character U+0009",
		"red \x1b[31m":                       "note contains the unprintable character U+001B",
		"reversed \u202e":                    "note contains the unprintable character U+202E",
		"latin \xe4":                         "note is not UTF-8",
	} {
		err := api.CheckNote(note)
		var e *api.Error
		if want == "" && err != nil || want != "" && (!errors.As(err, &e) || e.Code != api.CodeInvalid || e.Message != want) {
			t.Errorf("%.40q: %v, want %q", note, err, want)
		}
	}
}
