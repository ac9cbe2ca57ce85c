package volume

import (
	"strings"
	"testing"
	"time"
)

// TestSnapshotName checks that snapshotName shortens a long id, so that the name does not exceed
// the maximum length.
func TestSnapshotName(t *testing.T) {
	at := time.Date(2026, 11, 22, 11, 15, 0, 7_900_000, time.FixedZone("", 3600))
	for id, want := range map[string]string{
		"data": "data-20261122T101500Z-007", strings.Repeat("x", 128): strings.Repeat("x", 107) + "-20261122T101500Z-007", strings.Repeat("é", 64): strings.Repeat("é", 53) + "-20261122T101500Z-007",
	} {
		if got := snapshotName(id, at); got != want {
			t.Errorf("got %q of %d bytes, want %q", got, len(got), want)
		}
	}
}
