package csiclient

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/volagent/volagent/volmgr/call"
)

// FuzzWords checks the text that the method words makes of a plugin's message. The text must be one
// line of limited length without secrets, and a terminal must show it unchanged.
func FuzzWords(f *testing.F) {
	for _, text := range []string{
		"", " \n", "rpc failed: %s", "a\x1b[31m%s\x7f", "\xff%s\xfe", "a\u202eb\u2028%s", "\x00\x01", strings.Repeat("ä", maxMessage), strings.Repeat("x", maxMessage-3) + "%s", "hunter2\x00hunter2", "hunter2\u200bhunter2 ***",
	} {
		f.Add(text, "hunter2hunter2")
		f.Add(text, "a secret")
		f.Add(text, "line one\nline two")
	}
	f.Fuzz(func(t *testing.T, text, secret string) {
		if len(text) > 1<<12 || len(secret) > 1<<8 {
			return // longer texts would make the test too slow
		}
		c := &Client{opts: Options{Scrubber: &Scrubber{}}}
		c.opts.Scrubber.Add(call.Secrets{"key": call.NewSecret(secret)})
		got := c.words(strings.ReplaceAll(text, "%s", secret))
		bad := func(r rune) bool { return !unicode.IsPrint(r) }
		if got == "" || len(got) > maxMessage || !utf8.ValidString(got) || strings.ContainsFunc(got, bad) {
			t.Errorf("%q became %q", text, got)
		}
		if secret := strings.TrimSpace(secret); len(secret) >= minAnywhere && strings.Contains(got, secret) && !strings.Contains(noMessage, secret) {
			t.Errorf("%q is in %q", secret, got)
		}
	})
}
