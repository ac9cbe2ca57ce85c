package csiclient

import (
	"testing"
	"time"
)

// TestReconnectDelay checks that the client finds a returned plugin within a second plus gRPC's
// jitter, however long the plugin was away. TestReconnect tests a short absence with a real
// connection.
func TestReconnectDelay(t *testing.T) {
	if d := connectParams(Options{}.withDefaults()).Backoff.MaxDelay; d <= 0 || d > time.Second {
		t.Errorf("a pause of up to %s between two tries", d)
	}
}
