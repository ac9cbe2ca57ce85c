package csiclient

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/volagent/volagent/volmgr/call"
)

// maxScrubbed limits how many spellings a Scrubber remembers. Above this limit, the Scrubber
// forgets the oldest spelling first.
const maxScrubbed = 4096

// minAnywhere is the minimum length, in bytes, of a secret that the Scrubber masks anywhere in a
// text. It masks a shorter secret only if the secret is a separate word, because a short secret may
// also occur inside ordinary words. In a multi-line secret, each line of at least this length
// counts as a secret of its own.
const minAnywhere = 8

// minEncoded is the minimum length, in bytes, of a secret whose encoded forms the Scrubber also
// masks. The encoded forms of a shorter secret would also match other text.
const minEncoded = 4

// mask is the text that replaces a secret.
const mask = "***"

// unmaskedKeys lists keys whose values are names, and not secrets. Drivers quote these values in
// their errors. Masking them would make the errors unreadable.
var unmaskedKeys = []string{"name", "region", "storage", "bucket", "endpoint"}

// Scrubber replaces secrets by "***" in a plugin's messages (docs/security.md states the rule). It
// remembers every secret that was sent to the plugin, because a plugin may quote the secret of an
// earlier call. The zero value is ready for use. Its methods are safe for concurrent use.
type Scrubber struct {
	mu       sync.Mutex
	seen     map[spelling]bool
	order    []spelling // from the oldest to the newest spelling
	unmasked []string
}

// spelling is one form in which a message may contain the value of a secret.
type spelling struct {
	key  string // the secret's key in lower case
	text string
	// anywhere is set if Scrub masks the spelling anywhere in a text. Otherwise Scrub masks the
	// spelling only as a separate word.
	anywhere bool
}

// Unmask makes the Scrubber show the values of the given keys, as it does for unmaskedKeys. The
// case of the keys does not matter.
func (s *Scrubber) Unmask(keys ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unmasked = make([]string, len(keys))
	for i, key := range keys {
		s.unmasked[i] = strings.ToLower(key)
	}
}

// Add remembers the values of the secrets, and the other forms in which programs usually print such
// values.
func (s *Scrubber) Add(secrets call.Secrets) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for key, secret := range secrets {
		value := secret.Reveal()
		key = strings.ToLower(key)
		s.addAll(key, value)

		// The value may be a URL that is not masked because of its key. A password inside the URL
		// is still a secret.
		if u, err := url.Parse(strings.TrimSpace(value)); err == nil && u.User != nil {
			password, _ := u.User.Password()
			s.addAll(key+" password", password)
		}
	}
}

// addAll remembers all spellings of a value. The caller must hold mu.
func (s *Scrubber) addAll(key, value string) {
	if value == "" || s.seen[spelling{key, value, len(value) >= minAnywhere}] {
		return
	}
	for _, one := range spellings(value) {
		one.key = key
		s.add(one)
	}
}

func (s *Scrubber) add(one spelling) {
	if one.text == "" || s.seen[one] {
		return
	}
	if s.seen == nil {
		s.seen = map[spelling]bool{}
	}
	s.seen[one] = true
	s.order = append(s.order, one)
	if len(s.order) > maxScrubbed {
		delete(s.seen, s.order[0])
		s.order = slices.Delete(s.order, 0, 1)
	}
}

// masked returns the spellings that Scrub must mask.
func (s *Scrubber) masked() []spelling {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.order)
	return slices.DeleteFunc(all, func(one spelling) bool {
		return slices.Contains(unmaskedKeys, one.key) || slices.Contains(s.unmasked, one.key)
	})
}

// Scrub returns the text with all secrets masked.
func (s *Scrubber) Scrub(text string) string {
	all := s.masked()
	text, found := replace(text, all)

	// A mask and the characters next to it may together form another secret, so the loop repeats
	// the replacement. The loop ends, because each round makes the text shorter.
	long := slices.DeleteFunc(all, func(one spelling) bool { return !one.anywhere })
	for found {
		text, found = replace(text, long)
	}
	return text
}

// span is the range of bytes in a text that begins at from and ends before to.
type span struct{ from, to int }

// replace masks all spellings in a text, even if they overlap. It also reports whether it found any
// of them.
func replace(text string, all []spelling) (string, bool) {
	var spans []span
	for _, one := range all {
		spans = one.find(spans, text)
	}

	if len(spans) == 0 {
		return text, false
	}

	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })

	var out strings.Builder
	done := 0
	for i, next := range spans {
		if i == 0 || next.from > done {
			out.WriteString(text[done:next.from])
			out.WriteString(mask)
		}
		done = max(done, next.to)
	}

	out.WriteString(text[done:])
	return out.String(), true
}

// find appends to spans every position of the spelling in the text.
func (one spelling) find(spans []span, text string) []span {
	for from := 0; ; {
		at := strings.Index(text[from:], one.text)
		if at < 0 {
			return spans
		}

		found := span{from + at, from + at + len(one.text)}
		if one.anywhere || one.isWord(text, found) {
			spans = append(spans, found)
		}
		from = found.from + 1
	}
}

// isWord reports whether the found spelling is a whole word of the text, and not part of a longer
// word.
func (one spelling) isWord(text string, found span) bool {
	first, _ := utf8.DecodeRuneInString(one.text)
	last, _ := utf8.DecodeLastRuneInString(one.text)
	before, _ := utf8.DecodeLastRuneInString(text[:found.from])
	after, _ := utf8.DecodeRuneInString(text[found.to:])
	joinedBefore := inWord(first) && inWord(before)
	joinedAfter := inWord(last) && inWord(after)
	return !joinedBefore && !joinedAfter
}

// inWord reports whether a character is part of a word. At the ends of a text and for invalid
// bytes, decoding returns utf8.RuneError, which is not part of a word.
func inWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' }

// spellings lists the forms in which a secret's value may appear in a message. Scrub masks the
// forms of a long value anywhere, and the forms of a short value only as separate words.
func spellings(value string) []spelling {
	var all []spelling
	for _, v := range []string{value, strings.TrimSpace(value)} {
		for _, text := range encodings(v) {
			all = append(all, spelling{text: text, anywhere: len(v) >= minAnywhere})
		}
	}

	for line := range strings.Lines(value) {
		if line = strings.TrimSpace(line); len(line) >= minAnywhere {
			all = append(all, spelling{text: line, anywhere: true})
		}
	}

	return all
}

// encodings returns a value and the encoded forms in which programs may print it.
func encodings(v string) []string {
	quoted := strconv.Quote(v)
	all := []string{
		v, quoted[1 : len(quoted)-1], url.QueryEscape(v), url.PathEscape(v),
		base64.StdEncoding.EncodeToString([]byte(v)), base64.URLEncoding.EncodeToString([]byte(v)),
	}
	if len(v) < minEncoded {
		return all
	}
	return append(all,
		base64.RawStdEncoding.EncodeToString([]byte(v)), base64.RawURLEncoding.EncodeToString([]byte(v)),
		hex.EncodeToString([]byte(v)), strings.ToUpper(hex.EncodeToString([]byte(v))))
}
