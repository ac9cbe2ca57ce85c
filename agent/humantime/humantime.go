// Package humantime reads durations and times as people type them, such as "90s", "2d", "yesterday" or
// "2h ago".
package humantime

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	durationForms = "write 5 or 5s for seconds, 5m, 2h30m, 1d or 2w"
	timeForms     = `write a time such as 2026-11-28T14:00:00Z, "2026-11-28 14:00", 2026-11-28 or 14:00, a word (now, today, yesterday), or a duration such as 2h or "2h ago"`
)

var (
	wholeDuration = regexp.MustCompile(`^(?:[0-9]{1,19}(?:\.[0-9]{1,9})? ?[a-zµμ]+ ?)+$`)
	onePart       = regexp.MustCompile(`([0-9]+(?:\.[0-9]+)?) ?([a-zµμ]+)`)
	bareNumber    = regexp.MustCompile(`^[0-9]{1,19}(?:\.[0-9]{1,9})?$`)
)

// ParseDuration parses a duration. A number without a unit counts seconds. The units are those of
// [time.ParseDuration], d for 24 hours, w for 7 days, and the usual words such as min and days. Parts
// can follow one another, as in 2h30m. All texts that [time.ParseDuration] reads keep their meaning,
// so the result may be negative. The error names the accepted forms.
func ParseDuration(text string) (time.Duration, error) {
	if d, err := time.ParseDuration(text); err == nil {
		return d, nil
	}
	if bareNumber.MatchString(text) {
		text += "s"
	}

	bad := fmt.Errorf("%s is not a duration; %s", quote(text), durationForms)
	if !wholeDuration.MatchString(text) {
		return 0, bad
	}

	sum := new(big.Rat)
	for _, part := range onePart.FindAllStringSubmatch(text, -1) {
		n, ok := new(big.Rat).SetString(part[1])
		unit := unitOf(part[2])
		if !ok || unit == 0 {
			return 0, bad
		}
		sum.Add(sum, n.Mul(n, new(big.Rat).SetInt64(int64(unit))))
	}

	nanos := new(big.Int).Quo(sum.Num(), sum.Denom())
	if nanos.Cmp(big.NewInt(math.MaxInt64)) > 0 {
		return 0, fmt.Errorf("%s is longer than 292 years; %s", quote(text), durationForms)
	}

	return time.Duration(nanos.Int64()), nil
}

// unitOf returns the length of a unit. It returns 0 for an unknown unit.
func unitOf(name string) time.Duration {
	switch name {
	case "ns":
		return time.Nanosecond
	case "us", "µs", "μs":
		return time.Microsecond
	case "ms":
		return time.Millisecond
	case "s", "sec", "second", "seconds":
		return time.Second
	case "m", "min", "minute", "minutes":
		return time.Minute
	case "h", "hr", "hour", "hours":
		return time.Hour
	case "d", "day", "days":
		return 24 * time.Hour
	case "w", "week", "weeks":
		return 7 * 24 * time.Hour
	}
	return 0
}

// layouts lists the forms of a time with a date. A form without a zone is in the zone of now.
var layouts = []string{
	time.RFC3339Nano, time.DateTime, "2006-01-02 15:04", "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateOnly,
}

// ParseTime parses a time. The text is a time of RFC 3339, a date with or without a time, or a time of
// today. It can also be one of the words now, today and yesterday, or a duration before now, as in
// "2h ago" or 2h. The words today and yesterday mean midnight. Times without a zone are in the zone of now. The error names the accepted
// forms.
func ParseTime(text string, now time.Time) (time.Time, error) {
	midnight := func(day int) time.Time {
		return time.Date(now.Year(), now.Month(), now.Day()+day, 0, 0, 0, 0, now.Location())
	}

	switch text {
	case "now":
		return now, nil
	case "today":
		return midnight(0), nil
	case "yesterday":
		return midnight(-1), nil
	}

	for _, layout := range layouts {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}

	for _, layout := range []string{"15:04", time.TimeOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location()), nil
		}
	}

	ago, err := ParseDuration(strings.TrimSpace(strings.TrimSuffix(text, "ago")))
	if err != nil || ago < 0 {
		return time.Time{}, fmt.Errorf("%s is not a time; %s", quote(text), timeForms)
	}

	return now.Add(-ago), nil
}

// Flag is a flag with a duration as [ParseDuration] reads it. It implements pflag's Value.
type Flag struct{ To *time.Duration }

// Set parses the value of the flag.
func (f Flag) Set(text string) (err error) {
	d, err := ParseDuration(text)
	if err == nil {
		*f.To = d
	}
	return err
}

// String returns the value of the flag. It returns "0" for 0, so that help pages show no default.
func (f Flag) String() string {
	if f.To == nil || *f.To == 0 {
		return "0"
	}
	return f.To.String()
}

// Type returns the type that help pages show.
func (f Flag) Type() string { return "duration" }

// quote quotes a text for a message. It shortens a long text.
func quote(s string) string {
	const most = 40
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most]) + "…"
	}
	return strconv.Quote(s)
}
