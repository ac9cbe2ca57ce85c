package output

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// Printable escapes control characters. A text may contain such characters if it comes from a
// plugin, or from a volume of another user.
func Printable(s string) string { return api.Printable(s) }

// OneLine makes a text printable and puts it on a single line, for a table cell.
func OneLine(s string) string {
	if !strings.ContainsAny(s, "\n\t") {
		return Printable(strings.TrimSpace(s))
	}
	return Printable(strings.Join(strings.Fields(s), " "))
}

// Dash returns "-" for an empty text, so that no table cell is empty.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// QuotedList formats names as `"a", "b"`.
func QuotedList(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = strconv.Quote(n)
	}
	return strings.Join(quoted, ", ")
}

var sizeUnits = []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}

// Size formats a number of bytes with the units of volume files and at most one decimal, such as
// "1.5GiB".
func Size(bytes int64) string {
	unit := SizeUnit(bytes)
	return InUnit(bytes, unit) + sizeUnits[unit]
}

// ExactSize formats a number of bytes as Size does, and adds the exact number, as in
// "18.6GiB (20000000000 bytes)".
func ExactSize(bytes int64) string { return fmt.Sprintf("%s (%d bytes)", Size(bytes), bytes) }

// SizeUnit returns the index of the largest unit that is not larger than the size.
func SizeUnit(bytes int64) int {
	unit := 0
	for bytes >= 1024 && unit < len(sizeUnits)-1 {
		bytes /= 1024
		unit++
	}
	return unit
}

// InUnit formats a number of bytes in the given unit, without the name of the unit.
func InUnit(bytes int64, unit int) string {
	scaled := float64(bytes) / float64(int64(1)<<(10*unit))
	return strings.TrimSuffix(strconv.FormatFloat(scaled, 'f', 1, 64), ".0")
}

// SizeOrDash returns a size formatted by Size, or "-" if the size is unknown.
func SizeOrDash(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return Size(bytes)
}

// age formats a duration as a number and a unit, so that people can compare ages.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// Count returns a number with a noun in the singular or plural, such as "1 claim" or "2 claims".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Since returns how long ago an event happened, or "-" if the time of the event is unknown.
func Since(now, then time.Time) string {
	if then.IsZero() {
		return "-"
	}
	return age(now.Sub(then))
}

// In returns the time from now until then, or "now" if then is in the past.
func In(now, then time.Time) string {
	left := then.Sub(now).Round(time.Second)
	if left <= 0 {
		return "now"
	}
	return "in " + left.String()
}

// Joined joins the parts with a separator. It omits empty parts.
func Joined(separator string, parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		if p == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(separator)
		}
		b.WriteString(p)
	}

	return b.String()
}

// Percent returns part as a percentage of whole. The result is at most 100%.
func Percent(part, whole int64) string {
	if part >= whole {
		return "100%"
	}
	return fmt.Sprintf("%d%%", int64(float64(part)/float64(whole)*100))
}

// YesNo returns "yes" or "no".
func YesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// ReadWrite returns the mount option "ro" or "rw".
func ReadWrite(readOnly bool) string {
	if readOnly {
		return "ro"
	}
	return "rw"
}

// Arrow puts an arrow in front of a command that the operator can run. If command is empty, Arrow
// returns "".
func Arrow(command string) string {
	if command == "" {
		return ""
	}
	return "→ " + command
}

// NothingToDo writes the screen of a command that has nothing to do.
func NothingToDo(w *bytes.Buffer) error {
	w.WriteString("nothing to do\n")
	return nil
}
