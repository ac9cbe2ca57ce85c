package process

import "testing"

// TestGCPercent checks that gcPercent makes collections of a small heap rare, and returns Go's
// default for a large heap.
func TestGCPercent(t *testing.T) {
	for live, want := range map[uint64]int{0: 400, 4 << 20: 400, 16 << 20: 200, 32 << 20: 100, 1 << 40: 100} {
		if got := gcPercent(live); got != want {
			t.Errorf("with %d bytes in use: %d %%, want %d %%", live, got, want)
		}
	}
}
