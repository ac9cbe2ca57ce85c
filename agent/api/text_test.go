package api_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

// TestPrintable checks that no character of the result controls the terminal or hides other text.
func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain größe 漢字 \u00a0\u3000": "plain größe 漢字 \u00a0\u3000",
		"a\nb\tc":                     "a\nb\tc",
		"\x1b[31mred\x7f":             `\x1b[31mred\x7f`,
		"\u009b31m":                   `\x9b31m`,
		"a\u202eb\u2066c\u200fd":      `a\u202eb\u2066c\u200fd`,
		"a\u2028b\u2029c\u0085d":      `a\u2028b\u2029c\x85d`,
		"a\u200bb\ufeffc\U000e0041d":  `a\u200bb\ufeffc\U000e0041d`,
		"a\xffb\ufffdc":               "a\\xffb\ufffdc",
		"\r\a\b":                      `\x0d\x07\x08`,
	} {
		if got := api.Printable(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// TestEncodeJSON checks that the JSON text contains no hidden characters, and that the decoded
// value contains all of them.
func TestEncodeJSON(t *testing.T) {
	const in = "a\x1b\u009b\u202e\u2028\U000e0041é<&>\n"
	var b strings.Builder
	if err := api.EncodeJSON(&b, map[string]string{"k": in}); err != nil {
		t.Fatal(err)
	}
	if want := `{"k":"a\u001b\u009b\u202e\u2028\udb40\udc41é<&>\n"}` + "\n"; b.String() != want {
		t.Errorf("%q\nwant %q", b.String(), want)
	}
	var out map[string]string
	if err := json.Unmarshal([]byte(b.String()), &out); err != nil || out["k"] != in {
		t.Errorf("%q, %v", out["k"], err)
	}
}
