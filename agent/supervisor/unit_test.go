package supervisor

import (
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
)

// TestDrawing checks that the machine has exactly the transitions in the list above its type.
func TestDrawing(t *testing.T) {
	source, err := os.ReadFile("machine.go")
	if err != nil {
		t.Fatal(err)
	}
	drawn := map[string]State{}
	for _, m := range regexp.MustCompile(`(?m)^//\t([a-z-]+) +--([a-z]+)--> +([a-z-]+)`).FindAllStringSubmatch(string(source), -1) {
		drawn[m[1]+" "+m[2]] = State(m[3])
	}
	if len(drawn) < 15 {
		t.Fatalf("the drawing is not found: %v", drawn)
	}
	events := map[string]func(*machine) error{
		"start":     func(m *machine) error { return m.start("r") },
		"ready":     func(m *machine) error { return m.ready() },
		"unhealthy": func(m *machine) error { return m.unhealthy("r") },
		"lost":      func(m *machine) error { return m.lost("r", time.Unix(9, 0)) },
		"refuse":    func(m *machine) error { return m.refuse("r") },
		"stop":      func(m *machine) error { return m.stop("r") },
	}
	for _, state := range []State{Stopped, Starting, Ready, Unhealthy, BackingOff, Failed, "nonsense"} {
		for name, event := range events {
			told := 0
			m := newMachine(func(from State, now status) { told++ })
			m.now = status{state: state, since: time.Unix(1, 0), next: time.Unix(2, 0), restarts: 3}
			err := event(m)
			now := m.snapshot()
			want, ok := drawn[string(state)+" "+name]
			delete(drawn, string(state)+" "+name)
			if !ok {
				if err == nil || now.state != state || told != 0 || now.restarts != 3 {
					t.Errorf("%s in %s is not drawn, and gives %v, %s", name, state, err, now.state)
				}
				continue
			}
			if err != nil || now.state != want {
				t.Errorf("%s in %s: %v, %s, and %s is drawn", name, state, err, now.state, want)
			}
			if changed := want != state; (told == 1) != changed || changed != (now.since != time.Unix(1, 0)) {
				t.Errorf("%s in %s: told %d times, since %s", name, state, told, now.since)
			}
			if (now.restarts == 4) != (state == BackingOff && name == "start") {
				t.Errorf("%s in %s: %d restarts", name, state, now.restarts)
			}
			if next := now.next.Unix(); want == BackingOff && next != 9 || want != state && want != BackingOff && !now.next.IsZero() {
				t.Errorf("%s in %s: next start at %d", name, state, next)
			}
		}
	}
	if len(drawn) != 0 {
		t.Errorf("drawn and unknown: %v", drawn)
	}
}

func TestBackoff(t *testing.T) {
	about := func(got, want time.Duration) bool { return got >= want*79/100 && got <= want*121/100 }
	p := pauses{Backoff: Backoff{}.withDefaults()}
	for i, want := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second,
		32 * time.Second, 64 * time.Second, 128 * time.Second, 256 * time.Second, 5 * time.Minute, 5 * time.Minute} {
		if got := p.fell(0); !about(got, want) {
			t.Errorf("fall %d: %s, want about %s", i, got, want)
		}
	}
	if got := p.fell(time.Minute); !about(got, 500*time.Millisecond) {
		t.Errorf("after a minute of being ready: %s", got)
	}
	// A day in which the plugin becomes ready and fails at once.
	p.reset()
	falls := 0
	for left := 24 * time.Hour; left > 0; falls++ {
		left -= p.fell(time.Second) + time.Second
	}
	if falls < 300 || falls > 400 {
		t.Errorf("%d falls a day", falls)
	}
	spread := map[time.Duration]bool{}
	for range 20 {
		spread[backoff.Jitter(time.Second)] = true
	}
	if len(spread) < 10 {
		t.Errorf("no jitter: %v", spread)
	}
}
