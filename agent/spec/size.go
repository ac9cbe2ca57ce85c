package spec

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strings"
)

// units lists the accepted units. Storage vendors use both decimal and binary units, and only the
// full names distinguish them.
var units = []struct {
	name  string
	bytes int64
}{
	{"B", 1},
	{"KB", 1e3},
	{"kB", 1e3},
	{"MB", 1e6},
	{"GB", 1e9},
	{"TB", 1e12},
	{"KiB", 1 << 10},
	{"MiB", 1 << 20},
	{"GiB", 1 << 30},
	{"TiB", 1 << 40},
}

var sizeForm = regexp.MustCompile(`^([0-9]{1,19}(?:\.[0-9]{1,12})?) ?([A-Za-z]*)$`)

// ParseSize parses a size such as "10GiB" or "1.5 TB" into a number of bytes. The result is in the
// range from 1 to 2^63-1. A unit is required, because some readers take "10" for bytes and others
// for gigabytes. A fraction is allowed if the result is a whole number of bytes.
func ParseSize(s string) (int64, error) {
	m := sizeForm.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("bad size %s: write a number and a unit, as in 10GiB", quote(s))
	}
	if m[2] == "" {
		return 0, fmt.Errorf("bad size %s: a unit is needed, as in %sGiB", quote(s), m[1])
	}

	scale, err := unit(m[2])
	if err != nil {
		return 0, fmt.Errorf("bad size %s: %w", quote(s), err)
	}

	n, ok := new(big.Rat).SetString(m[1])
	if !ok {
		return 0, fmt.Errorf("bad size %s: not a number", quote(s))
	}

	n.Mul(n, new(big.Rat).SetInt64(scale))
	switch {
	case n.Sign() == 0:
		return 0, fmt.Errorf("bad size %s: it must be more than 0", quote(s))
	case !n.IsInt():
		return 0, fmt.Errorf("bad size %s: it is not a whole number of bytes", quote(s))
	case n.Cmp(new(big.Rat).SetInt64(math.MaxInt64)) > 0:
		return 0, fmt.Errorf("bad size %s: it is more than 2^63-1 bytes", quote(s))
	}

	return n.Num().Int64(), nil
}

func unit(name string) (int64, error) {
	names := make([]string, len(units))
	for i, u := range units {
		if u.name == name {
			return u.bytes, nil
		}
		names[i] = u.name
	}
	return 0, errors.New("the unit is one of " + strings.Join(names, ", "))
}
