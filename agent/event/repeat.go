package event

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

const (
	// endedAfter is how long an event must not repeat before the log reports its final count. It is
	// longer than the longest pause between two attempts of a step, or between two starts of a
	// plugin.
	endedAfter = 10 * time.Minute
	// forgottenAfter is the time after which a repeated event counts as new.
	forgottenAfter = time.Hour
	// firstRepeats is the count at which the log first reports repetitions. It then reports them
	// each time the count doubles. For a plugin, it also reports every repetition up to this count.
	firstRepeats = 8
	// maxSubjects limits for how many volumes and plugins the log counts repetitions.
	maxSubjects = 4096
)

// repeats withholds repetitions of an event. It reports the first event at once, and also each
// event with a new message. Of the repetitions, it reports the 8th, 16th, 32nd and so on, with the
// count. When the repetitions have stopped, it reports the last repetition.
type repeats struct {
	seen uint64 // number of repetitions so far, which orders them
	rows map[subject]map[about]*row
}

// subject is a volume. For events that concern no volume, it is a plugin.
type subject struct{ volume, plugin string }

// about distinguishes the events of one subject whose repetitions are counted separately.
type about struct {
	alloc, part, step string
	typ               volume.EventType
}

// row is one event with its repetitions.
type row struct {
	text        string
	count       int
	first, last time.Time
	order       uint64        // position of the last repetition among all repetitions
	held        *volume.Event // the last repetition, unless it has been reported
}

// repeatable reports whether events of a type can repeat endlessly without a request. Every other
// event follows from a request or from a repeatable event.
func repeatable(typ volume.EventType) bool {
	return strings.HasPrefix(string(typ), "plugin-") || strings.HasSuffix(string(typ), "-failed") || typ == volume.EventWarning || typ == volume.EventClaimRefused
}

func subjectOf(e volume.Event) subject {
	if e.Volume != "" {
		return subject{volume: e.Volume}
	}
	return subject{plugin: e.Plugin}
}

// pass decides whether to report an event. It returns the events to report, with their final
// messages. If withheld events of the same plugin must be reported before this event, pass returns
// them first.
func (r *repeats) pass(e volume.Event, now time.Time) []volume.Event {
	e, tell := r.decide(e, now)
	if !tell {
		return nil
	}

	var before []volume.Event
	if of := subjectOf(e); of.volume == "" {
		// The last reported event of a plugin must show the current state of the plugin.
		before = words(r.heldBack(of))
	}

	return append(before, e)
}

func (r *repeats) decide(e volume.Event, now time.Time) (volume.Event, bool) {
	of := subjectOf(e)
	if !repeatable(e.Type) {
		switch e.Type {
		case volume.EventClaimMounted, volume.EventClaimDetached, volume.EventDeregistered, volume.EventDeleted:
			delete(r.rows, of) // the problem is solved, so report the next failure at once
		}
		return e, true
	}

	if r.rows == nil || len(r.rows) > maxSubjects {
		r.rows = map[subject]map[about]*row{}
	}

	if r.rows[of] == nil {
		r.rows[of] = map[about]*row{}
	}
	what := about{e.Alloc, e.Part, e.Step, e.Type}
	was := r.rows[of][what]
	text := e.Message
	if e.Type == volume.EventClaimRefused {
		// Treat all messages of this type alike, because they contain a duration that changes each
		// time.
		text = ""
	}

	if was == nil || was.text != text || now.Sub(was.last) > forgottenAfter {
		r.rows[of][what] = &row{text: text, count: 1, first: now, last: now}
		return e, true
	}

	r.seen++
	was.count++
	was.last, was.order = now, r.seen
	if was.count <= firstRepeats && of.volume == "" {
		return e, true // report each restart, so that a user sees when the plugin is ready again
	}
	if was.count < firstRepeats || bits.OnesCount(uint(was.count)) != 1 {
		was.held = &e
		return e, false
	}

	was.held = nil
	return was.counted(e), true
}

// heldBack removes the withheld events of a subject and returns them. It keeps their counts.
func (r *repeats) heldBack(of subject) (due []*row) {
	for _, w := range r.rows[of] {
		if w.held != nil {
			cp := *w
			due = append(due, &cp)
			w.held = nil
		}
	}

	return due
}

// counted adds the number and the start of the repetitions to the message.
func (w *row) counted(e volume.Event) volume.Event {
	e.Message = fmt.Sprintf("%s (%d times since %s)", e.Message, w.count, w.first.UTC().Format("2006-01-02 15:04:05Z"))
	return e
}

// ended returns the last event of each repetition that has stopped, oldest first. It deletes
// repetitions that are too old.
func (r *repeats) ended(now time.Time) []volume.Event {
	return r.take(func(w *row) bool { return now.Sub(w.last) >= endedAfter }, func(w *row) bool { return now.Sub(w.last) > forgottenAfter })
}

// all returns all withheld events, oldest first.
func (r *repeats) all() []volume.Event {
	return r.take(func(*row) bool { return true }, func(*row) bool { return false })
}

func (r *repeats) take(tell, forget func(*row) bool) []volume.Event {
	var due []*row
	for of, rows := range r.rows {
		for what, w := range rows {
			switch {
			case w.held != nil && tell(w):
				due = append(due, w)
				delete(rows, what)
			case forget(w):
				delete(rows, what)
			}
		}

		if len(rows) == 0 {
			delete(r.rows, of)
		}
	}

	return words(due)
}

// words returns the withheld events with their counts, oldest first.
func words(due []*row) []volume.Event {
	slices.SortFunc(due, func(a, b *row) int { return cmp.Compare(a.order, b.order) })
	evs := make([]volume.Event, len(due))
	for i, w := range due {
		evs[i] = w.counted(*w.held)
	}

	return evs
}
