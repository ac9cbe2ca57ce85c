package main

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxSubject is the maximum length of a commit subject. A subject of this length fits into the 100
// columns of a line of `git log --oneline`.
const maxSubject = 90

// pastOrThird lists word endings that are not imperative, as in "added" and "adding".
var pastOrThird = []string{"ed", "ing"}

// checkSubject returns an error for the first mistake in the subject of a commit.
func checkSubject(subject string) error {
	text := subject
	if _, rest, found := strings.Cut(subject, ": "); found && !strings.Contains(subject[:len(subject)-len(rest)-2], " ") {
		text = rest // the subject begins with a path, as in "volmgr/mount: text"
	}

	first, _, _ := strings.Cut(text, " ")
	for _, ending := range pastOrThird {
		if strings.HasSuffix(first, ending) && first != "Feed" && first != "Embed" && first != "Bring" && first != "String" {
			return fmt.Errorf("commit subject %q: start with an imperative, for example \"Report\", not %q", subject, first)
		}
	}
	if n := utf8.RuneCountInString(subject); n > maxSubject {
		return fmt.Errorf("commit subject %q: %d characters, at most %d", subject, n, maxSubject)
	}
	if strings.HasSuffix(subject, ".") {
		return fmt.Errorf("commit subject %q: no full stop at the end", subject)
	}
	for i := range rules {
		if rules[i].breaks(text) > 0 {
			return fmt.Errorf("commit subject %q: %s: %s", subject, rules[i].name, rules[i].advice)
		}
	}
	return nil
}
