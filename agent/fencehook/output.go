package fencehook

import (
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/volagent/volagent/agent/api"
)

// maxOutput is the maximum number of bytes that are kept of the output of a call.
const maxOutput = 4 << 10

// hidden replaces a secret in an output.
const hidden = "***"

// tail is a writer that keeps the last bytes of a stream.
type tail struct {
	mu   sync.Mutex
	max  int
	kept []byte
	cut  bool // the stream has more bytes than kept contains
}

// Write implements io.Writer. It never fails, so a program is never stopped because it prints much.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.kept = append(t.kept, p[max(0, len(p)-t.max):]...)
	t.cut = t.cut || len(p) > t.max
	if extra := len(t.kept) - t.max; extra > 0 {
		t.kept = slices.Delete(t.kept, 0, extra)
		t.cut = true
	}
	return len(p), nil
}

// text returns the last bytes, and whether there were more.
func (t *tail) text() (text string, cut bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept), t.cut
}

// longest returns the length of the longest secret.
func longest(secrets []string) (n int) {
	for _, s := range secrets {
		n = max(n, len(s))
	}
	return n
}

// shown returns an output in a form that is safe in logs and on terminals: without secrets, with
// escaped control characters, and with at most maxOutput bytes. The kept bytes must contain maxOutput
// bytes and the longest secret.
func shown(out *tail, secrets []string) string {
	raw, cut := out.text()
	skip := 0
	if cut {
		// The first bytes may be the end of a secret that was cut.
		skip = max(0, longest(secrets)-1)
	}

	text := strings.TrimSpace(api.Printable(strings.ReplaceAll(redact(raw, secrets, skip), "\r\n", "\n")))
	if len(text) <= maxOutput && !cut {
		return text
	}

	text = text[max(0, len(text)-maxOutput):]
	for text != "" && !utf8.RuneStart(text[0]) {
		text = text[1:]
	}
	return "…" + text
}

// redact replaces all secrets in a text, and drops the first bytes of the text.
func redact(text string, secrets []string, skip int) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		n := 0
		for _, s := range secrets {
			if strings.HasPrefix(text[i:], s) {
				n = max(n, len(s))
			}
		}

		switch {
		case n > 0 && i+n > skip:
			b.WriteString(hidden)
		case n == 0 && i >= skip:
			b.WriteByte(text[i])
		}
		i += max(n, 1)
	}

	return b.String()
}

// head returns the first bytes of a text. It does not split a character.
func head(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}
