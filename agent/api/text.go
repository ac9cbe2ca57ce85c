package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Printable returns a text that is safe to show on a screen. It escapes every character that a
// terminal would obey, or that would change the visible order or lines of the text. These are
// control characters, bidirectional and other format characters, line and paragraph separators, and
// bytes that are not UTF-8. Newlines and tabs stay.
func Printable(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\n' || r == '\t' || shown(r):
			b.WriteRune(r)
		case r <= 0xff:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}

	return b.String()
}

// shown reports whether a terminal displays a character as itself. That includes spaces of other
// scripts and characters of private use.
func shown(r rune) bool {
	return unicode.IsPrint(r) || unicode.In(r, unicode.Zs, unicode.Co)
}

// EncodeJSON writes a value as one line of JSON. It writes every character that Printable escapes
// as \uXXXX, so that the line is safe on a terminal and decodes to the same value.
func EncodeJSON(w io.Writer, v any) error {
	text, err := MarshalJSON(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// MarshalJSON encodes a value as EncodeJSON does, without the newline at the end.
func MarshalJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // no browser reads this
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return escapeJSON(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), nil
}

// escapeJSON replaces hidden characters in a JSON text. All of them are inside strings, because a
// JSON text is ASCII outside of strings.
func escapeJSON(text []byte) []byte {
	if !bytes.ContainsFunc(text, hidden) {
		return text
	}

	out := make([]byte, 0, len(text)+64)
	for _, r := range string(text) {
		switch {
		case !hidden(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}

	return out
}

// hidden reports whether a character of JSON text must be escaped. A raw newline or tab can only
// occur between values.
func hidden(r rune) bool { return r != '\n' && r != '\t' && !shown(r) }
