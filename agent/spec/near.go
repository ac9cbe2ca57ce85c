package spec

import (
	"slices"
	"strings"
)

// Near returns up to five candidates that a user may have meant by word, with the nearest first. A
// candidate matches if it differs from word by at most two typing mistakes, or by one in a short
// word. It also matches if it begins with word, or word begins with it.
func Near(word string, candidates []string) []string {
	type scored struct {
		name string
		dist int
	}

	var near []scored
	a := []rune(strings.ToLower(word))
	for _, c := range candidates {
		b := []rune(strings.ToLower(c))
		if c == "" || c == word || len(a) == 0 {
			continue
		}

		dist := distance(a, b)
		switch {
		case dist <= allowed(len(a)):
		case min(len(a), len(b)) >= 2 && (hasPrefix(a, b) || hasPrefix(b, a)):
			dist = 10 + max(len(a), len(b)) - min(len(a), len(b))
		default:
			continue
		}

		near = append(near, scored{c, dist})
	}

	slices.SortStableFunc(near, func(x, y scored) int { return x.dist - y.dist })
	names := make([]string, 0, 5)
	for _, n := range near[:min(len(near), 5)] {
		names = append(names, n.name)
	}

	return names
}

func hasPrefix(s, prefix []rune) bool {
	return len(s) >= len(prefix) && slices.Equal(s[:len(prefix)], prefix)
}

// allowed returns the maximum number of typing mistakes in a word of this length.
func allowed(length int) int {
	if length <= 4 {
		return 1
	}
	return 2
}

// distance counts the single edits that convert a to b. An edit inserts, deletes or replaces a
// character, or swaps two adjacent characters. If a text is much longer than an id, distance
// returns a large number without a comparison.
func distance(a, b []rune) int {
	if len(a) > 2*MaxID || len(b) > 2*MaxID {
		return 2 * MaxID
	}

	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}

	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}

		before, last, row = last, row, before
	}

	return last[len(b)]
}
