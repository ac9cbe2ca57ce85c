package humantime_test

import (
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/humantime"
)

func TestParseDuration(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "5": 5 * time.Second, "1.5": 1500 * time.Millisecond, "90s": 90 * time.Second, "5m": 5 * time.Minute, "2h30m": 150 * time.Minute, "1d": day, "2w": 14 * day,
		"1d12h": 36 * time.Hour, "1.5d": 36 * time.Hour, "1w2d3h4m5s6ms": 9*day + 3*time.Hour + 4*time.Minute + 5*time.Second + 6*time.Millisecond,
		"100ms": 100 * time.Millisecond, "1h1.5s": time.Hour + 1500*time.Millisecond, "-1s": -time.Second, ".5h": 30 * time.Minute, "1µs": time.Microsecond,
		"5min": 5 * time.Minute, "2 hours": 2 * time.Hour, "2h 30m": 150 * time.Minute, "3 days": 3 * day, "106751d": 106751 * day,
	} {
		if got, err := humantime.ParseDuration(text); err != nil || got != want {
			t.Errorf("%q: got %s, %v, want %s", text, got, err, want)
		}
	}

	for text, want := range map[string]string{
		"": `"" is not a duration`, "often": "is not a duration", "5x": "is not a duration", "5M": "is not a duration", "1d-1h": "is not a duration", "-1d": "is not a duration", "d": "is not a duration",
		"1h30": "is not a duration", "1mo": "is not a duration", "1y": "is not a duration", " 5s": "is not a duration", "1,5s": "is not a duration", "106752d": "longer than 292 years", "9999999999999999999": "longer than 292 years",
	} {
		got, err := humantime.ParseDuration(text)
		if err == nil || got != 0 || !strings.Contains(err.Error(), want) || !strings.HasSuffix(err.Error(), "; write 5 or 5s for seconds, 5m, 2h30m, 1d or 2w") {
			t.Errorf("%q: got %s, %v, want %q and the forms", text, got, err, want)
		}
	}
}

func TestParseTime(t *testing.T) {
	zone := time.FixedZone("", 2*3600)
	now := time.Date(2026, 3, 1, 15, 30, 20, 5, zone)
	at := func(month time.Month, day, hour, minute, second int) time.Time {
		return time.Date(2026, month, day, hour, minute, second, 0, zone)
	}

	for text, want := range map[string]time.Time{
		"now": now, "today": at(3, 1, 0, 0, 0), "yesterday": at(2, 28, 0, 0, 0),
		"2026-02-27T14:00:00Z": at(2, 27, 16, 0, 0), "2026-02-27T14:00:00.5+02:00": at(2, 27, 14, 0, 0).Add(500 * time.Millisecond),
		"2026-02-27": at(2, 27, 0, 0, 0), "2026-02-27 14:00": at(2, 27, 14, 0, 0), "2026-02-27 14:00:07": at(2, 27, 14, 0, 7), "2026-02-27T14:00": at(2, 27, 14, 0, 0), "2026-02-27T14:00:07": at(2, 27, 14, 0, 7),
		"14:00": at(3, 1, 14, 0, 0), "9:05": at(3, 1, 9, 5, 0), "14:00:07": at(3, 1, 14, 0, 7),
		"2h": now.Add(-2 * time.Hour), "2h ago": now.Add(-2 * time.Hour), "3 days ago": now.Add(-72 * time.Hour), "5": now.Add(-5 * time.Second), "0": now,
	} {
		if got, err := humantime.ParseTime(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: got %s, %v, want %s", text, got, err, want)
		}
	}

	for _, text := range []string{"", "ago", "tomorrow", "2026-02-30", "2026-13-01", "25:00", "-1h", "2h before", "28.2.2026", "14h00"} {
		got, err := humantime.ParseTime(text, now)
		if err == nil || !got.IsZero() || !strings.Contains(err.Error(), "is not a time; write a time such as 2026-11-28T14:00:00Z") || !strings.Contains(err.Error(), `"2h ago"`) {
			t.Errorf("%q: got %s, %v", text, got, err)
		}
	}
}

func TestFlag(t *testing.T) {
	var d time.Duration
	f := humantime.Flag{To: &d}
	if f.String() != "0" || f.Set("1d") != nil || d != 24*time.Hour || f.String() != "24h0m0s" || f.Type() != "duration" {
		t.Errorf("%s, %s", f, d)
	}
	if err := f.Set("soon"); err == nil || d != 24*time.Hour {
		t.Errorf("%v, %s", err, d)
	}
}

// FuzzParse checks that each accepted text of [time.ParseDuration] keeps its meaning, and that no
// text of another form gives a negative duration or a time after now plus one day.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"5", "2h30m", "1d", "2w ago", "yesterday", "2026-11-28", "14:00", "-1h", "1.5d", "9999999999999w", "1d1d1d", "d", "5 min"} {
		f.Add(seed)
	}
	now := time.Date(2026, 3, 1, 15, 30, 20, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		d, err := humantime.ParseDuration(text)
		known, other := time.ParseDuration(text)
		if other == nil && (err != nil || d != known) || other != nil && d < 0 {
			t.Errorf("%q is %s, %v, and was %s, %v", text, d, err, known, other)
		}
		if at, err := humantime.ParseTime(text, now); err == nil && d > 0 && at.After(now) {
			t.Errorf("%q is %s", text, at)
		}
	})
}
