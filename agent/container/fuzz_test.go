package container

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// FuzzLogs checks that Logs copies a container's output without the runtime's timestamps, however
// the output is split into writes. A line without an end must not make the buffer grow. No output
// may make Logs return an earlier time than before.
func FuzzLogs(f *testing.F) {
	const stamp = "2026-01-01T00:00:02.5Z"
	for _, text := range []string{
		"", "\n", stamp, stamp + " a\n", stamp + " \n" + stamp + " b", "Error: x\n" + stamp + " 2026-01-01T00:00:09Z c\n", stamp + "\n", " " + stamp + " a\n", stamp + "  a\r\n", strings.Repeat("9", 100) + " a\n",
		"2026-01-01T00:00:00.123456789+00:00 a\n", "9999-12-31T23:59:59.999999999-23:59 a\n2026-01-01T00:00:03Z b\n", "\xff\x00\n", stamp + strings.Repeat(" ", 5000) + "\n", strings.Repeat("e", 5000) + "\n",
	} {
		f.Add(text, 1)
		f.Add(text+text, 7)
	}
	since := time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string, size int) {
		if size <= 0 {
			return
		}
		var whole, pieces strings.Builder
		a, b := &stripper{to: &whole, since: since, last: since}, &stripper{to: &pieces, since: since, last: since}
		if n, err := a.Write([]byte(text)); err != nil || n != len(text) {
			t.Fatalf("%d, %v", n, err)
		}
		for piece := range slices.Chunk([]byte(text), size) {
			if _, err := b.Write(piece); err != nil {
				t.Fatal(err)
			}
			if len(b.head) > maxStamp || len(b.words) > maxReason+maxStamp {
				t.Errorf("%d bytes of a line, %d words are kept", len(b.head), len(b.words))
			}
		}
		if err := a.end(); err != nil {
			t.Fatal(err)
		}
		if err := b.end(); err != nil || whole.String() != pieces.String() || !a.last.Equal(b.last) || a.words != b.words || a.last.Before(since) {
			t.Errorf("%q: %q until %s in one, and in pieces %q until %s, %v", text, whole.String(), a.last, pieces.String(), b.last, err)
		}
		var stamped, want strings.Builder
		for i, line := range strings.Split(text, "\n") {
			stamped.WriteString(since.Add(time.Duration(i)).Format(time.RFC3339Nano) + " " + line + "\n")
			if i > 0 { // since is the time of the first line, so Logs skips that line
				want.WriteString(line + "\n")
			}
		}
		var got strings.Builder
		c := &stripper{to: &got, since: since, last: since}
		if _, err := c.Write([]byte(stamped.String())); err != nil || got.String() != want.String() || c.words != "" {
			t.Errorf("%q became %q, with the words %q, %v", stamped.String(), got.String(), c.words, err)
		}
	})
}
