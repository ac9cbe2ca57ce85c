package part

import (
	"os"
	"regexp"
	"testing"
	"time"
)

// TestDrawing checks that the machine has exactly the transitions in the comment of Machine.
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
	events := map[string]func(*Machine) error{
		"start":     func(m *Machine) error { return m.Start("r") },
		"ready":     func(m *Machine) error { return m.Ready() },
		"unhealthy": func(m *Machine) error { return m.Unhealthy("r") },
		"lost":      func(m *Machine) error { return m.Lost("r", time.Unix(9, 0)) },
		"refuse":    func(m *Machine) error { return m.Refuse("r") },
		"stop":      func(m *Machine) error { return m.Stop("r") },
	}
	for _, state := range []State{Stopped, Starting, Ready, Unhealthy, BackingOff, Failed, "nonsense"} {
		for name, event := range events {
			told := 0
			m := NewMachine(func(from State, now Status) { told++ })
			m.now = Status{State: state, Since: time.Unix(1, 0), Next: time.Unix(2, 0), Restarts: 3}
			err := event(m)
			now := m.Snapshot()
			want, ok := drawn[string(state)+" "+name]
			delete(drawn, string(state)+" "+name)
			if !ok {
				if err == nil || now.State != state || told != 0 || now.Restarts != 3 {
					t.Errorf("%s in %s is not drawn, and gives %v, %s", name, state, err, now.State)
				}
				continue
			}
			if err != nil || now.State != want {
				t.Errorf("%s in %s: %v, %s, and %s is drawn", name, state, err, now.State, want)
			}
			if changed := want != state; (told == 1) != changed || changed != (now.Since != time.Unix(1, 0)) {
				t.Errorf("%s in %s: told %d times, since %s", name, state, told, now.Since)
			}
			if (now.Restarts == 4) != (state == BackingOff && name == "start") {
				t.Errorf("%s in %s: %d restarts", name, state, now.Restarts)
			}
			if next := now.Next.Unix(); want == BackingOff && next != 9 || want != state && want != BackingOff && !now.Next.IsZero() {
				t.Errorf("%s in %s: next start at %d", name, state, next)
			}
		}
	}
	if len(drawn) != 0 {
		t.Errorf("drawn and unknown: %v", drawn)
	}
}
