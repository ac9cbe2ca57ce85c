package csiclient

import (
	"testing"
	"time"
)

// TestReconnectDelay: however long a plugin was away, it is found within a
// second and gRPC's jitter. TestReconnect shows the short case for real.
func TestReconnectDelay(t *testing.T) {
	if d := connectParams(Options{}.withDefaults()).Backoff.MaxDelay; d <= 0 || d > time.Second {
		t.Errorf("a pause of up to %s between two tries", d)
	}
}
