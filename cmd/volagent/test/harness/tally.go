package harness

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Tally counts events by name. It is safe for concurrent use.
type Tally struct {
	mu sync.Mutex
	n  map[string]int
}

// Add counts an event.
func (t *Tally) Add(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == nil {
		t.n = map[string]int{}
	}
	t.n[what]++
}

// Of returns how often an event was counted.
func (t *Tally) Of(what string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n[what]
}

// String returns one line for each event that was counted.
func (t *Tally) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var lines []string
	for _, what := range slices.Sorted(maps.Keys(t.n)) {
		lines = append(lines, fmt.Sprintf("%7d %s", t.n[what], what))
	}
	return strings.Join(lines, "\n")
}
