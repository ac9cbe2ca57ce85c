package pluginlog

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/volagent/volagent/agent/container"
)

// FuzzTail checks the last lines of a log for any output of a plugin. Tail must return the
// requested number of lines. The lines must contain no secrets and no characters that control a
// terminal. A follower must get the same lines.
func FuzzTail(f *testing.F) {
	const secret = "hunter2hunter2"
	for _, text := range []string{
		"", "\n\n", "a\nb\nc", "a\r\n\x1b[2J\xff\n", secret + "\n", "hunter2\x00hunter2\n", "hunter2\nhunter2", "\u202eabc\u2028d\n", strings.Repeat("x", maxLine) + "\n", strings.Repeat("ä", maxLine) + secret, "a\tb",
	} {
		f.Add(text, uint32(0), 2)
		f.Add(text, uint32(tailBytes), 3)
	}
	f.Add("x", uint32(1), -1)
	path := filepath.Join(f.TempDir(), "log")
	f.Fuzz(func(t *testing.T, text string, more uint32, n int) {
		if more > 2*tailBytes || len(text) > 1<<16 || n > 1000 {
			return
		}
		if err := os.WriteFile(path, []byte(strings.Repeat("y", int(more))+text), 0o600); err != nil {
			t.Fatal(err)
		}
		scrub := func(s string) string { return strings.ReplaceAll(s, secret, "***") }
		lines, err := tail(path, n, scrub)
		if err != nil || len(lines) > max(n, 0) {
			t.Fatalf("%d lines, %v", len(lines), err)
		}
		followed, next, err := since(path, int64(more), scrub)
		if err != nil || next > int64(more)+int64(len(text)) {
			t.Fatalf("until %d, %v", next, err)
		}
		for _, line := range append(slices.Clone(lines), followed...) {
			obeyed := func(r rune) bool { return !unicode.IsPrint(r) }
			if len(line) > maxLine+2*len("…") || !utf8.ValidString(line) || strings.ContainsFunc(line, obeyed) || strings.Contains(line, secret) {
				t.Errorf("%.200q has a line of %d bytes, %.200q", text, len(line), line)
			}
		}
		end := strings.TrimRight(text, "\n")
		if want := strings.Split(end, "\n"); more == 0 && end != "" && n > 0 && (len(lines) != min(n, len(want)) || lines[len(lines)-1] != clean(want[len(want)-1], scrub)) {
			t.Errorf("%.200q ends with %.200q", text, lines)
		}
	})
}

// FuzzMark checks the stored time up to which the output of a container was copied. The time must
// apply only to the container for which it was stored.
func FuzzMark(f *testing.F) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	for _, text := range []string{"", "c 2026-01-01T00:00:00Z\n", "c", "c x", " ", "d 2026-01-01T00:00:00Z", "c 2026-01-01T00:00:00Z d"} {
		f.Add(text, "c", at.UnixNano())
	}
	f.Fuzz(func(t *testing.T, text, id string, nano int64) {
		l := NewCopy(filepath.Join(t.TempDir(), "log"))
		write := func(text string) {
			if err := os.WriteFile(l.markFile(), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(text)
		if at := l.mark(id); !at.IsZero() && !strings.HasPrefix(strings.TrimSpace(text), id+" ") {
			t.Errorf("%q is a mark of %q: %s", text, id, at)
		}
		if id == "" || strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
			return // a container's id has only letters and digits
		}
		at := time.Unix(0, nano).UTC()
		write(fmt.Sprintf("%s %s\n", id, at.Format(time.RFC3339Nano)))
		l.From(container.Runtime{}, id)
		if !l.until.Equal(at) || !l.mark(id+"x").IsZero() {
			t.Errorf("the log of %q was copied until %s, not %s", id, at, l.until)
		}
	})
}
