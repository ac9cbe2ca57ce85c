package api_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/volagent/volagent/agent/api"
)

// obeyed reports whether a terminal would act on a character instead of showing it. Such a
// character controls the terminal or changes the position of other characters.
func obeyed(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Bidi_Control, unicode.Cs))
}

// FuzzText checks that no character of an escaped text controls a terminal or hides other text. A
// text without such characters stays unchanged, and a second escape changes nothing. FuzzText also
// checks that the text, encoded as JSON, decodes to the original text.
func FuzzText(f *testing.F) {
	for _, text := range []string{
		"", "plain größe 漢字", "a\nb\tc", "\x1b[31m\x7f", "\u009b31m", "a\u202eb\u2066c\u200fd", "a\u2028b\u2029c\u0085d", "\ufeff\U000e0041\ufffd", "\xff\xc3", `\x1b`, `\u202e`, "\"<&>\\", "\U0001f600\U0010ffff", "\xed\xa0\x80",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		shown := api.Printable(text)
		if strings.ContainsFunc(shown, obeyed) || !utf8.ValidString(shown) {
			t.Errorf("%q is shown as %q", text, shown)
		}
		if again := api.Printable(shown); again != shown {
			t.Errorf("%q is shown as %q, and that as %q", text, shown, again)
		}
		graphic := func(r rune) bool { return !unicode.IsGraphic(r) && r != '\n' && r != '\t' }
		if utf8.ValidString(text) && !strings.ContainsFunc(text, graphic) && shown != text {
			t.Errorf("%q is shown as %q", text, shown)
		}
		line, err := api.MarshalJSON(map[string]string{text: text})
		if err != nil || strings.ContainsFunc(string(line), obeyed) || strings.ContainsRune(string(line), '\n') {
			t.Errorf("%q is encoded as %q, %v", text, line, err)
		}
		var got map[string]string
		want := string([]rune(text)) // each invalid byte becomes a replacement character
		if err := json.Unmarshal(line, &got); err != nil || len(got) != 1 || got[want] != want {
			t.Errorf("%q is encoded as %q, and decoded as %q, %v", text, line, got, err)
		}
	})
}
