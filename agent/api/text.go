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

// Printable returns a text that is safe to show on a terminal. It escapes every character that
// controls the terminal, or that changes the visible order or the lines of the text. These are
// control characters, bidirectional and other format characters, line and paragraph separators, and
// invalid UTF-8 bytes. It keeps newlines and tabs.
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

// shown reports whether a terminal displays a character as itself. Spaces of all scripts and
// private use characters count as displayed.
func shown(r rune) bool {
	return unicode.IsPrint(r) || unicode.In(r, unicode.Zs, unicode.Co)
}

// EncodeJSON writes a value as one line of JSON. It writes each character that Printable would
// escape as \uXXXX. The line is therefore safe on a terminal, and still decodes to the same value.
func EncodeJSON(w io.Writer, v any) error {
	text, err := MarshalJSON(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// MarshalJSON encodes a value like EncodeJSON, but without the final newline.
func MarshalJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // no browser reads the output
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return escapeJSON(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), nil
}

// escapeJSON escapes hidden characters in a JSON text. All of them are inside strings, because the
// rest of a JSON text is ASCII.
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

// hidden reports whether a character of a JSON text must be escaped. A raw newline or tab occurs
// only between values and can stay.
func hidden(r rune) bool { return r != '\n' && r != '\t' && !shown(r) }
