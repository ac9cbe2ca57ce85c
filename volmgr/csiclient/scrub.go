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

	"github.com/volagent/volagent/volmgr/volume"
)

// maxScrubbed bounds how many spellings a Scrubber remembers. Past it the
// oldest go first.
const maxScrubbed = 4096

// minLine is the length, in bytes, from which one line of a secret of several
// lines counts as a secret of its own.
const minLine = 8

// minEncoded is the length, in bytes, from which a secret is looked for in forms
// that a short one shares with much else.
const minEncoded = 4

// Scrubber replaces secrets by "***" in what a plugin says. It remembers every
// secret that the plugin was given, since a plugin may quote in one answer
// what it was told in an earlier call. The zero value is ready for use, by
// many goroutines.
type Scrubber struct {
	mu    sync.Mutex
	seen  map[string]bool
	order []string // oldest first
}

// Add remembers the values of secrets and the spellings in which programs
// usually print them.
func (s *Scrubber) Add(secrets volume.Secrets) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, secret := range secrets {
		value := secret.Reveal()
		if value == "" || s.seen[value] {
			continue
		}
		for _, spelling := range spellings(value) {
			s.add(spelling)
		}
	}
}

func (s *Scrubber) add(spelling string) {
	if spelling == "" || s.seen[spelling] {
		return
	}
	if s.seen == nil {
		s.seen = map[string]bool{}
	}
	s.seen[spelling] = true
	s.order = append(s.order, spelling)
	if len(s.order) > maxScrubbed {
		delete(s.seen, s.order[0])
		s.order = slices.Delete(s.order, 0, 1)
	}
}

// Scrub returns text without the secrets.
func (s *Scrubber) Scrub(text string) string {
	s.mu.Lock()
	spellings := slices.Clone(s.order)
	s.mu.Unlock()
	// The longest first, so that no part of one is left where another is
	// contained in it.
	slices.SortFunc(spellings, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, spelling := range spellings {
		text = strings.ReplaceAll(text, spelling, "***")
	}
	return text
}

// spellings lists a secret's value as it may turn up in a message.
func spellings(value string) []string {
	trimmed := strings.TrimSpace(value)
	all := []string{value, trimmed}
	for _, v := range []string{value, trimmed} {
		quoted := strconv.Quote(v)
		all = append(all,
			quoted[1:len(quoted)-1],
			url.QueryEscape(v), url.PathEscape(v),
			base64.StdEncoding.EncodeToString([]byte(v)),
			base64.URLEncoding.EncodeToString([]byte(v)))
	}
	if len(trimmed) >= minEncoded {
		for _, v := range []string{value, trimmed} {
			all = append(all,
				base64.RawStdEncoding.EncodeToString([]byte(v)), base64.RawURLEncoding.EncodeToString([]byte(v)),
				hex.EncodeToString([]byte(v)), strings.ToUpper(hex.EncodeToString([]byte(v))))
		}
	}
	for line := range strings.Lines(value) {
		if line = strings.TrimSpace(line); len(line) >= minLine {
			all = append(all, line)
		}
	}
	return all
}
