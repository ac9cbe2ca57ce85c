// Package bytesize reads and writes sizes as people write them, such as "20G" or "10GiB".
package bytesize

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

const (
	sizeForms       = "write a number with a unit K, M, G, T or P (1000), or Ki, Mi, Gi, Ti or Pi (1024), as in 20G or 20GiB"
	dockerSizeForms = "write a number with a unit k, m, g, t or p (1024, as docker counts), or KB, MB, GB, TB or PB (1000), as in 20g"
)

// leastBare is the least number of bytes that a number without a unit may mean. People who write 10
// mean 10 gigabytes or so, and never 10 bytes. Programs write the full number of bytes.
const leastBare = 1 << 20

var sizeForm = regexp.MustCompile(`^([0-9]{1,19}(?:\.[0-9]{1,12})?) ?([A-Za-z]*)$`)

// Parse parses a size such as "20G", "10GiB" or "1.5 TB" into a number of bytes. K, M, G, T and P
// count in 1000, and Ki, Mi, Gi, Ti and Pi in 1024, with or without a B. Storage vendors use both, and
// only the names distinguish them. Case does not matter. A number without a unit counts bytes, and must
// be at least 1048576. Sizes in Nomad's volume specification have the same forms and values. The
// result is in the range from 1 to 2^63-1. A fraction is allowed if the result is a whole number of
// bytes. The error describes the accepted forms.
func Parse(s string) (int64, error) { return parse(s, scale, sizeForms) }

// ParseDocker is like [Parse] for sizes in options of docker, podman and compose files, in which a
// single letter counts in 1024: "20g" is 20 GiB.
func ParseDocker(s string) (int64, error) { return parse(s, dockerScale, dockerSizeForms) }

// Format formats a number of bytes without rounding. It uses the unit with the smallest whole number,
// as in "20GB" for 20000000000 and "20GiB" for 21474836480. [Parse] returns the same number for the
// text.
func Format(bytes int64) string {
	number, unit := bytes, "B"
	for _, u := range written {
		if bytes%u.bytes == 0 && bytes/u.bytes < number {
			number, unit = bytes/u.bytes, u.name
		}
	}
	return strconv.FormatInt(number, 10) + unit
}

// written lists the units that Format writes.
var written = []struct {
	name  string
	bytes int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
}

func parse(s string, scaleOf func(unit string) int64, forms string) (int64, error) {
	bad := func(reason string) error { return fmt.Errorf("bad size %s: %s%s", quote(s), reason, forms) }
	m := sizeForm.FindStringSubmatch(s)
	if m == nil {
		if strings.HasPrefix(s, "-") {
			return 0, bad("it must be more than 0; ")
		}
		return 0, bad("")
	}

	unit := scaleOf(strings.ToLower(m[2]))
	if unit == 0 {
		return 0, bad("there is no unit " + quote(m[2]) + "; ")
	}

	n, ok := new(big.Rat).SetString(m[1])
	if !ok {
		return 0, bad("")
	}

	n.Mul(n, new(big.Rat).SetInt64(unit))
	switch {
	case n.Sign() == 0:
		return 0, bad("it must be more than 0; ")
	case !n.IsInt():
		return 0, bad("it is not a whole number of bytes; ")
	case n.Cmp(new(big.Rat).SetInt64(math.MaxInt64)) > 0:
		return 0, bad("it is more than 2^63-1 bytes; ")
	case m[2] == "" && n.Cmp(new(big.Rat).SetInt64(leastBare)) < 0:
		return 0, bad("a number without a unit counts bytes, and must be at least 1048576; ")
	}

	return n.Num().Int64(), nil
}

// scale returns the number of bytes of a unit in lower case. It returns 0 for an unknown unit.
func scale(unit string) int64 {
	const letters = "kmgtp"
	letter, rest := unit, ""
	if unit != "" {
		letter, rest = unit[:1], unit[1:]
	}

	i := strings.Index(letters, letter)
	switch {
	case unit == "", unit == "b":
		return 1
	case i < 0:
		return 0
	}

	switch rest {
	case "", "b":
		return []int64{1e3, 1e6, 1e9, 1e12, 1e15}[i]
	case "i", "ib":
		return 1 << (10 * (i + 1))
	}

	return 0
}

// dockerScale is like scale, but a single letter counts in 1024.
func dockerScale(unit string) int64 {
	if len(unit) == 1 && unit != "b" {
		return scale(unit + "i")
	}
	return scale(unit)
}

// quote quotes a text for a message. It shortens a long text.
func quote(s string) string {
	const most = 40
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most]) + "…"
	}
	return strconv.Quote(s)
}
