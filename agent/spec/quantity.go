package spec

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
)

var quantityForm = regexp.MustCompile(`^\+?([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?[0-9]{1,2}))?$`)

// The units of Kubernetes and their exponents. The base is 2 for binary units and 10 for decimal
// units.
var (
	quantityBinary  = map[string]uint{"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
	quantityDecimal = map[string]int{"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
)

// parseQuantity parses a Kubernetes quantity, such as "10Gi", "1.5G" or "1e9", into a number of
// bytes. The result is in the range from 1 to 2^63-1. parseQuantity rounds a fraction of a byte up,
// as Kubernetes does.
func parseQuantity(s string) (int64, error) {
	m := quantityForm.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("bad quantity %s: it is a number with one of the suffixes Ki, Mi, Gi, Ti, Pi, Ei, k, M, G, T, P, E, or none", quote(s))
	}

	n, ok := new(big.Rat).SetString(m[1])
	if !ok {
		return 0, fmt.Errorf("bad quantity %s: not a number", quote(s))
	}

	scale := new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), quantityBinary[m[2]]))
	exponent := quantityDecimal[m[2]]

	if m[3] != "" {
		var err error
		if exponent, err = strconv.Atoi(m[3]); err != nil {
			return 0, fmt.Errorf("bad quantity %s: %w", quote(s), err)
		}
	}

	ten := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exponent, -exponent))), nil))
	if exponent < 0 {
		ten.Inv(ten)
	}

	n.Mul(n, scale).Mul(n, ten)
	bytes, rest := new(big.Int).QuoRem(n.Num(), n.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		bytes.Add(bytes, big.NewInt(1))
	}

	switch {
	case bytes.Sign() == 0:
		return 0, fmt.Errorf("bad quantity %s: it must be more than 0", quote(s))
	case bytes.Cmp(big.NewInt(math.MaxInt64)) > 0:
		return 0, fmt.Errorf("bad quantity %s: it is more than 2^63-1 bytes", quote(s))
	}

	return bytes.Int64(), nil
}
