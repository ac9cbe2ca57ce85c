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
	// endedAfter is the time without a repetition after which the final count is reported. It is
	// longer than the longest pause between two attempts of a step, or two starts of a plugin.
	endedAfter = 10 * time.Minute
	// forgottenAfter is the time after which an event counts as new again.
	forgottenAfter = time.Hour
	// firstRepeats is the count at which repetitions are first reported, with a report at each
	// doubling after that. For a plugin, every repetition up to this count is reported, too.
	firstRepeats = 8
	// maxSubjects limits the volumes and plugins that repeats remembers.
	maxSubjects = 4096
)

// repeats holds back repetitions of an event. The first event is reported at once, and so is one
// with another message. Then the 8th, 16th, 32nd … are reported with their count. When the
// repetitions have stopped, the last one is reported.
type repeats struct {
	seen uint64 // the number of repetitions so far, which orders them
	rows map[subject]map[about]*row
}

// subject is a volume or, for events that do not concern a volume, a plugin.
type subject struct{ volume, plugin string }

// about distinguishes independent events of one subject.
type about struct{ alloc, part, typ, step string }

// row is one event with its repetitions.
type row struct {
	text        string
	count       int
	first, last time.Time
	order       uint64        // the order of the last repetition
	held        *volume.Event // the last repetition, if it was not reported
}

// repeatable reports whether events of a type can repeat endlessly without a request. All others
// are the consequence of a request, or of one of these.
func repeatable(typ string) bool {
	return strings.HasPrefix(typ, "plugin-") || strings.HasSuffix(typ, "-failed") || typ == "warning" || typ == volume.EventRefused
}

func subjectOf(e volume.Event) subject {
	if e.Volume != "" {
		return subject{volume: e.Volume}
	}
	return subject{plugin: e.Plugin}
}

// pass decides about an event. It returns the event to report, if any, with its final message.
// Events that were held back and must be reported first come before it.
func (r *repeats) pass(e volume.Event, now time.Time) []volume.Event {
	e, tell := r.decide(e, now)
	if !tell {
		return nil
	}

	var before []volume.Event
	if of := subjectOf(e); of.volume == "" {
		// The last reported event of a plugin must show its present state.
		before = words(r.heldBack(of))
	}

	return append(before, e)
}

func (r *repeats) decide(e volume.Event, now time.Time) (volume.Event, bool) {
	of := subjectOf(e)
	if !repeatable(e.Type) {
		switch e.Type {
		case "claim-mounted", "claim-detached", "deregistered", "deleted":
			delete(r.rows, of) // the problem is over, and a new one is reported at once
		}
		return e, true
	}

	if r.rows == nil || len(r.rows) > maxSubjects {
		r.rows = map[subject]map[about]*row{}
	}

	if r.rows[of] == nil {
		r.rows[of] = map[about]*row{}
	}
	what := about{e.Alloc, e.Part, e.Type, e.Step}
	was := r.rows[of][what]
	text := e.Message
	if e.Type == volume.EventRefused {
		text = "" // the message contains a changing time: for how long another claim holds the volume
	}

	if was == nil || was.text != text || now.Sub(was.last) > forgottenAfter {
		r.rows[of][what] = &row{text: text, count: 1, first: now, last: now}
		return e, true
	}

	r.seen++
	was.count++
	was.last, was.order = now, r.seen
	if was.count <= firstRepeats && of.volume == "" {
		return e, true // so that a restarted plugin is reported as ready again
	}
	if was.count < firstRepeats || bits.OnesCount(uint(was.count)) != 1 {
		was.held = &e
		return e, false
	}

	was.held = nil
	return was.counted(e), true
}

// heldBack takes the held back events of a subject. Their counts stay recorded.
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

// counted adds the count and the start of the repetitions to the message.
func (w *row) counted(e volume.Event) volume.Event {
	e.Message = fmt.Sprintf("%s (%d times since %s)", e.Message, w.count, w.first.UTC().Format("2006-01-02 15:04:05Z"))
	return e
}

// ended returns the last events of repetitions that have stopped, the oldest first, and forgets old
// ones.
func (r *repeats) ended(now time.Time) []volume.Event {
	return r.take(func(w *row) bool { return now.Sub(w.last) >= endedAfter }, func(w *row) bool { return now.Sub(w.last) > forgottenAfter })
}

// all returns all events that are held back, the oldest first.
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

// words returns the held back events with their counts, the oldest first.
func words(due []*row) []volume.Event {
	slices.SortFunc(due, func(a, b *row) int { return cmp.Compare(a.order, b.order) })
	evs := make([]volume.Event, len(due))
	for i, w := range due {
		evs[i] = w.counted(*w.held)
	}

	return evs
}
