package output

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"
)

// begun is the start time of all displays in the tests.
var begun = time.Date(2026, 3, 10, 3, 12, 11, 0, time.UTC)

// display runs a progress display with a fake clock and returns its output. The display gets one
// element of states at each update, and ends after the last one.
func display(t *testing.T, columns int, o Options, states ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	var clock time.Duration
	seen := make(chan struct{})
	o.Stderr, o.Format = &stderr, FormatTable
	o.Now = func() time.Time { return begun.Add(clock) }
	o.Columns = func() int { return columns }
	o.Pause = func(ctx context.Context, d time.Duration) error {
		if len(states) > 0 {
			clock += d
			return nil
		}
		close(seen)
		<-ctx.Done()
		return ctx.Err()
	}
	end := (&Printer{Options: o}).During(t.Context(), `copying "a"`, func(context.Context) string {
		state := states[0]
		states = states[1:]
		return state
	})
	<-seen
	end()
	return stderr.String()
}

func TestProgress(t *testing.T) {
	const erased = "\r\x1b[K"
	for _, tt := range []struct {
		name    string
		columns int
		states  []string
		want    string
	}{
		{"nothing within a second", 80, nil, ""},
		{"a terminal's one line", 80, []string{"", "step 1", "step 2"},
			erased + `copying "a"  1s` + erased + `copying "a"  2s  step 1` + erased + `copying "a"  3s  step 2` + erased},
		{"no wider than the terminal", 20, []string{"step 1"}, erased + `copying "a"  1s  s…` + erased},
		{"a wide character is not halved", 21, []string{"日本語"}, erased + `copying "a"  1s  日…` + erased},
		{"no escapes get through", 80, []string{"\x1b[2J\na"}, erased + `copying "a"  1s  \x1b[2J a` + erased},
		{"a line for each change", 0, []string{"", "step 1", "step 1", "", "step 1", "step 2\n"}, "copying \"a\": step 1\ncopying \"a\": step 2\n"},
	} {
		if got := display(t, tt.columns, Options{}, tt.states...); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestProgressIsForPeople checks that there is no progress display if the output is for a program.
func TestProgressIsForPeople(t *testing.T) {
	for _, o := range []Options{{Quiet: true, Format: FormatTable}, {Format: FormatJSON}, {Format: formatYAML}} {
		var stderr bytes.Buffer
		o.Stderr, o.Columns, o.Now = &stderr, func() int { return 80 }, func() time.Time { return begun }
		o.Pause = func(context.Context, time.Duration) error { t.Error("it is being displayed"); return io.EOF }
		(&Printer{Options: o}).During(t.Context(), "x", nil)()
		if stderr.Len() > 0 {
			t.Errorf("%+v: got %q", o, stderr.String())
		}
	}
}
