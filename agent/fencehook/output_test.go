package fencehook

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestOutput checks that people see an output without secrets and control characters.
func TestOutput(t *testing.T) {
	for _, c := range []struct{ printed, want string }{
		{"", ""},
		{"  one\r\ntwo\t2\n\n", "one\ntwo\t2"},
		{"\x1b[2J\x1b]0;title\a", `\x1b[2J\x1b]0;title\x07`},
		{"a\u202eb\xff", `a\u202eb\xff`},
		{"login volagent, password s3cret!\n", "login volagent, password ***"},
		{"s3cret!s3cret!x", "******x"},
		{"long s3cret!!", "long ***"},
	} {
		out := &tail{max: maxOutput + 8}
		_, _ = out.Write([]byte(c.printed))
		if got := shown(out, []string{"s3cret!", "s3cret!!"}); got != c.want {
			t.Errorf("%q is shown as %q, want %q", c.printed, got, c.want)
		}
	}
}

// TestOutputLimit checks that a long output shows its last part, with all kinds of characters.
func TestOutputLimit(t *testing.T) {
	for _, text := range []string{"x", "é", "\x1b", "\xff", "line\n"} {
		out := &tail{max: maxOutput}
		for range maxOutput {
			_, _ = out.Write([]byte(text))
		}
		_, _ = out.Write([]byte("the end"))

		got := shown(out, nil)
		if !strings.HasPrefix(got, "…") || !strings.HasSuffix(got, "the end") || len(got) > maxOutput+len("…") || !utf8.ValidString(got) {
			t.Errorf("%q: %d bytes: %.20q…", text, len(got), got)
		}
	}
}

// TestNoPartOfASecret cuts an output at every place of a secret. No part of the secret may be shown.
func TestNoPartOfASecret(t *testing.T) {
	const secret = "ABCDEFGHIJ"
	for after := maxOutput - 30; after < maxOutput+30; after++ {
		for _, size := range []int{1, 7, 1 << 20} {
			out := &tail{max: maxOutput + len(secret)}
			// The second secret makes the output shorter, so that earlier bytes are shown.
			text := strings.Repeat("-", 100) + secret + strings.Repeat("-", after) + secret
			for len(text) > 0 {
				n := min(size, len(text))
				_, _ = out.Write([]byte(text[:n]))
				text = text[n:]
			}
			if got := shown(out, []string{secret}); strings.ContainsAny(got, secret) || len(got) < maxOutput-30 {
				t.Fatalf("with %d bytes after the secret: %.40q…", after, got)
			}
		}
	}
}
