package failover

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseIDs(t *testing.T) {
	a, b := strings.Repeat("a", 64), strings.Repeat("0123456789abcdef", 4)
	for out, want := range map[string][]string{
		"": nil, a + "\n": {a}, a + "\n" + b + "\n": {a, b},
	} {
		if got, err := parseIDs(out); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", out, got, err)
		}
	}
	for _, out := range []string{"web\n", "--all\n", a[:12] + "\n", a + "0\n", a + "\n--force\n"} {
		if got, err := parseIDs(out); err == nil || got != nil {
			t.Errorf("%q: %q", out, got)
		}
	}
}

// TestContainersWithoutDocker checks that a docker that restarts does not end the service. A docker that
// does not answer for long does.
func TestContainersWithoutDocker(t *testing.T) {
	for _, tt := range []struct {
		silent time.Duration
		says   string
	}{
		{silentFor - containersEvery, "has ended"},
		{10 * silentFor, "no docker"},
	} {
		began := time.Unix(1e9, 0)
		now, started := began, false
		c := containers{
			volume: "db", now: func() time.Time { return now },
			sleep: func(context.Context, time.Duration) error { now = now.Add(containersEvery); return nil },
			host: Host{Run: func(_ context.Context, _ string, args ...string) (string, error) {
				switch since := now.Sub(began); {
				case args[0] == "start":
					started = true
				case args[0] != "ps":
				case started && since > time.Minute && since < time.Minute+tt.silent:
					return "", errors.New("no docker")
				case since < 4*time.Minute:
					return strings.Repeat("a", 64) + "\n", nil
				}
				return "", nil
			}},
		}
		if err := c.run(t.Context()); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("silent for %s: %v", tt.silent, err)
		}
	}
}
