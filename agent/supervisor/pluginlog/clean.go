package pluginlog

import (
	"strings"
	"unicode"
)

// maxLine is the maximum number of bytes of one log line that are shown.
const maxLine = 4 << 10

// Scrub removes secrets from a text.
type Scrub func(string) string

// cleaned removes secrets and control characters from lines, so that they can be shown to users.
func cleaned(lines []string, scrub Scrub) []string {
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = clean(line, scrub)
	}
	return out
}

// clean removes secrets and control characters from a line. It scrubs the line twice, because
// control characters may have split a secret.
func clean(line string, scrub Scrub) string { return scrub(printable(scrub(line))) }

// printable removes control characters and truncates a line that is too long.
func printable(line string) string {
	if len(line) > maxLine {
		line = line[:maxLine] + "…"
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case unicode.IsPrint(r):
			return r
		default:
			return -1
		}
	}, strings.ToValidUTF8(line, "\uFFFD"))
}
