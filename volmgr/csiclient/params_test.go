package csiclient

import (
	"testing"
	"time"
)

// TestReconnectDelay checks that the client finds a restarted plugin within a second plus gRPC's
// jitter, even if the plugin was down for a long time. TestReconnect tests a short downtime with a
// real connection.
func TestReconnectDelay(t *testing.T) {
	if d := connectParams(Options{}.withDefaults()).Backoff.MaxDelay; d <= 0 || d > time.Second {
		t.Errorf("a pause of up to %s between two tries", d)
	}
}
