package part

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/plugin"
)

// TestNext checks that Next agrees with the table in its comment, for each combination of inputs.
func TestNext(t *testing.T) {
	source, err := os.ReadFile("next.go")
	if err != nil {
		t.Fatal(err)
	}
	word := `([a-z-]+) +`
	rows := regexp.MustCompile(`(?m)^//\t`+strings.Repeat(word, 5)+`([a-z-]+)$`).FindAllStringSubmatch(string(source), -1)
	if len(rows) < 10 {
		t.Fatalf("the table is not found: %v", rows)
	}
	inUse := &plugin.Definition{ID: "p", Socket: "/a"}
	changes := map[string]*Change{
		"none":    nil,
		"removal": {},
		"pending": {Definition: &plugin.Definition{ID: "p", Socket: "/b", OnChange: plugin.OnChangePending}},
		"at-once": {Definition: &plugin.Definition{ID: "p", Socket: "/b", OnChange: plugin.OnChangeRestart}},
	}
	matched := map[int]bool{}
	check := func(d Desired, a Actual, ends bool, use Use, change string) {
		applies := func(row []string) bool {
			words := map[int][]string{1: {}, 2: {}, 3: {}, 4: {change}, 5: {string(use)}}
			say := func(column int, word string, is bool) {
				if is {
					words[column] = append(words[column], word)
				}
			}
			say(1, "yes", ends)
			say(2, "new", d.Wish != a.Settled)
			say(2, "halts", d.Wish.Halts())
			say(3, "none", a.Definition == nil)
			say(4, "some", d.Change != nil)
			say(4, "forced", d.Change != nil && d.Force)
			for column := 1; column <= 5; column++ {
				if row[column] != "-" && !slices.Contains(words[column], row[column]) {
					return false
				}
			}
			return true
		}
		row := slices.IndexFunc(rows, applies)
		matched[row] = true
		if got := Next(d, a, ends, use); got != Step(rows[row][6]) {
			t.Errorf("host ends %v, wish %d of %d, definition %v, change %s, forced %v, volumes %s: %s, want %s",
				ends, d.Wish, a.Settled, a.Definition != nil, change, d.Force, use, got, rows[row][6])
		}
	}
	uses, flags := []Use{Unknown, Used, Unused}, []bool{false, true}
	for i := range 4 * 3 * 2 * 4 * 2 * 2 * 3 { // each number stands for one combination of inputs
		pick := func(n int) int { defer func() { i /= n }(); return i % n }
		d := Desired{Wish: []Wish{Run, Restart, Pause, Stop}[pick(4)]}
		a := Actual{Settled: []Wish{Run, Pause, Stop}[pick(3)], Definition: []*plugin.Definition{nil, inUse}[pick(2)]}
		change := []string{"none", "removal", "pending", "at-once"}[pick(4)]
		d.Change, d.Force = changes[change], flags[pick(2)]
		check(d, a, flags[pick(2)], uses[pick(3)], change)
	}
	for i, row := range rows {
		if !matched[i] {
			t.Errorf("no state matches %q", row[0])
		}
	}
}

// TestPlan checks the plan for each kind of Switch.
func TestPlan(t *testing.T) {
	inUse := &plugin.Definition{ID: "p", Socket: "/a"}
	registered := &plugin.Definition{ID: "p", Socket: "/a", Registered: true}
	removal, other := &Change{}, &Change{Definition: &plugin.Definition{ID: "p", Socket: "/b"}}
	const restarted, stopped, started = "is being restarted on request", "is being stopped on request", "is being started on request"
	for _, tt := range []struct {
		name string
		d    Desired
		a    Actual
		use  Use
		want Plan
	}{
		{"restart", Desired{Wish: Restart}, Actual{Definition: inUse}, Used, Plan{Run, restarted, true, false}},
		{"restart of a stopped part", Desired{Wish: Restart}, Actual{Definition: inUse, Settled: Stop}, Unused, Plan{Run, started, false, false}},
		{"restart with a changed file", Desired{Wish: Restart, Change: other}, Actual{Definition: inUse}, Used, Plan{Run, "its file changed", true, true}},
		{"stop", Desired{Wish: Stop}, Actual{Definition: inUse}, Used, Plan{Stop, stopped, true, false}},
		{"stop with a changed file", Desired{Wish: Stop, Change: other}, Actual{Definition: inUse}, Used, Plan{Stop, stopped, true, true}},
		{"pause", Desired{Wish: Pause}, Actual{Definition: inUse}, Used, Plan{Pause, stopped, true, false}},
		{"stop of a paused part", Desired{Wish: Stop}, Actual{Definition: inUse, Settled: Pause}, Used, Plan{Stop, stopped, true, false}},
		{"start", Desired{}, Actual{Definition: inUse, Settled: Stop}, Unused, Plan{Run, started, false, false}},
		{"changed file", Desired{Change: other}, Actual{Definition: inUse}, Unused, Plan{Run, "its file changed", true, true}},
		{"first valid file", Desired{Change: other}, Actual{}, Used, Plan{Run, "its file changed", true, true}},
		{"changed registration", Desired{Change: &Change{Definition: registered}}, Actual{Definition: inUse}, Unused, Plan{Run, "its registration changed", true, true}},
		{"file in place of a registration", Desired{Change: other}, Actual{Definition: registered}, Unused, Plan{Run, "its registration changed", true, true}},
		{"removed file", Desired{Change: removal}, Actual{Definition: inUse}, Unused, Plan{Run, "its file was removed or disabled", true, true}},
		{"restart with a removed file, used", Desired{Wish: Restart, Change: removal}, Actual{Definition: inUse}, Used, Plan{Run, restarted, true, false}},
		{"removed file, forced", Desired{Change: removal, Force: true}, Actual{Definition: inUse}, Used, Plan{Run, "its file was removed or disabled", true, true}},
		{"removed bad file", Desired{Change: removal}, Actual{}, Used, Plan{Run, "its file was removed or disabled", true, true}},
		{"deregistered", Desired{Change: removal}, Actual{Definition: registered}, Unused, Plan{Run, "it was deregistered", true, true}},
		{"stop of a deregistered part, used", Desired{Wish: Stop, Change: removal}, Actual{Definition: registered}, Used, Plan{Stop, stopped, true, false}},
	} {
		if got := NewPlan(tt.d, tt.a, tt.use); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// TestSettled checks that a part has nothing left to do once its wish is carried out, unless
// another wish has arrived in the meantime.
func TestSettled(t *testing.T) {
	asks := map[string]func(*Desired){
		"start": (*Desired).AskStart, "restart": (*Desired).AskRestart, "stop": (*Desired).AskStop, "pause": (*Desired).AskPause,
	}
	for _, tt := range []struct {
		asked   string // the requests, in the order in which they are made
		settled Wish
	}{
		{"start", Run}, {"restart", Run}, {"stop", Stop}, {"pause", Pause},
		{"stop pause", Stop}, {"pause stop", Stop}, {"stop restart", Run}, {"pause start", Run}, {"restart start", Run}, {"restart stop", Stop},
	} {
		t.Run(fmt.Sprint(tt.asked), func(t *testing.T) {
			d, a := Desired{}, Actual{Definition: &plugin.Definition{}}
			for _, name := range strings.Fields(tt.asked) {
				asks[name](&d)
				if Next(d, a, false, Unknown) == Switch {
					d.Settle(&a, NewPlan(d, a, Unknown))
				}
			}
			if a.Settled != tt.settled || d.Wish != tt.settled {
				t.Errorf("settled %d, wish %d, want %d", a.Settled, d.Wish, tt.settled)
			}
			want := Serve
			if tt.settled.Halts() {
				want = Rest
			}
			if got := Next(d, a, false, Unknown); got != want {
				t.Errorf("then %s, want %s", got, want)
			}
		})
	}
}

// TestPropose checks which change follows from a definition in a file.
func TestPropose(t *testing.T) {
	a := &plugin.Definition{ID: "p", Socket: "/a", File: "1"}
	same := &plugin.Definition{ID: "p", Socket: "/a", File: "2"}
	b := &plugin.Definition{ID: "p", Socket: "/b"}
	bad := fmt.Errorf("bad")
	for _, tt := range []struct {
		name       string
		def, inUse *plugin.Definition
		err        error
		adopt      bool
		change     bool
	}{
		{"first", a, nil, nil, true, false},
		{"equal", same, a, nil, true, false},
		{"other", b, a, nil, false, true},
		{"removed", nil, a, nil, false, true},
		{"bad", nil, a, bad, false, false},
		{"bad from the start", nil, nil, bad, false, false},
	} {
		d := Desired{Change: &Change{}, Force: true}
		if got := d.Propose(tt.def, "f", tt.err, tt.inUse); got != tt.adopt || (d.Change != nil) != tt.change || d.Force != tt.change || !d.Retry {
			t.Errorf("%s: adopt %v, %+v", tt.name, got, d)
		}
		if tt.change && d.Change.Definition != tt.def {
			t.Errorf("%s: the change is to %v", tt.name, d.Change.Definition)
		}
	}
}
