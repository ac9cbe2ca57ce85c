package pluginlog

import (
	"strings"
	"unicode"
)

// maxLine is how many bytes of one line are shown.
const maxLine = 4 << 10

// Scrub removes secrets from a text.
type Scrub func(string) string

// cleaned returns lines in a form that people may see.
func cleaned(lines []string, scrub Scrub) []string {
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = clean(line, scrub)
	}
	return out
}

// clean returns a line in a form that people may see. It scrubs the line twice, because the
// characters that printable removes may have separated the parts of a secret.
func clean(line string, scrub Scrub) string { return scrub(printable(scrub(line))) }

// printable removes control characters and cuts a line that is too long.
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
