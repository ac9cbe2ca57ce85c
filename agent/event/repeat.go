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
	// endedAfter is for how long something that repeated must not have done so to
	// be told for the last time. It is longer than the longest pause between two
	// tries of a step, or two starts of a plugin.
	endedAfter = 10 * time.Minute
	// forgottenAfter is for how long something is remembered as told.
	forgottenAfter = time.Hour
	// firstRepeats is from which repetition on they are told, at each doubling; those
	// of a plugin are told each up to then.
	firstRepeats = 8
	// maxSubjects bounds what is remembered, in volumes and plugins.
	maxSubjects = 4096
)

// repeats holds back events that say the same over and over: the first is told
// at once, and so is one with other words; then the 8th, 16th, 32nd … with its
// count; and, once they have ended, the last.
type repeats struct {
	seen uint64 // events so far, which orders them
	rows map[subject]map[about]*row
}

// subject is a volume or, for events that are not about one, a plugin.
type subject struct{ volume, plugin string }

// about is what may be said of a subject independently.
type about struct{ alloc, part, typ, step string }

// row is one thing that was said.
type row struct {
	text        string
	count       int
	first, last time.Time
	order       uint64        // of the last one
	held        *volume.Event // the last one, if it was not told
}

// repeatable reports whether an event of a type can come by itself for ever.
// All others are the consequence of a request, or of one of these.
func repeatable(typ string) bool {
	return strings.HasPrefix(typ, "plugin-") || strings.HasSuffix(typ, "-failed") || typ == "warning" || typ == volume.EventRefused
}

func subjectOf(e volume.Event) subject {
	if e.Volume != "" {
		return subject{volume: e.Volume}
	}
	return subject{plugin: e.Plugin}
}

// pass decides on an event: whether it is told, in which words, and what that was
// held back is told before it.
func (r *repeats) pass(e volume.Event, now time.Time) []volume.Event {
	e, tell := r.decide(e, now)
	if !tell {
		return nil
	}
	var before []volume.Event
	if of := subjectOf(e); of.volume == "" {
		// The last that is told of a plugin is how it is.
		before = words(r.heldBack(of))
	}
	return append(before, e)
}

func (r *repeats) decide(e volume.Event, now time.Time) (volume.Event, bool) {
	of := subjectOf(e)
	if !repeatable(e.Type) {
		switch e.Type {
		case "claim-taken", "claim-freed", "deregistered", "deleted":
			delete(r.rows, of) // the trouble is over, and told anew if it comes back
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
		text = "" // it says for how long somebody holds the volume, so it is never the same
	}
	if was == nil || was.text != text || now.Sub(was.last) > forgottenAfter {
		r.rows[of][what] = &row{text: text, count: 1, first: now, last: now}
		return e, true
	}
	r.seen++
	was.count++
	was.last, was.order = now, r.seen
	if was.count <= firstRepeats && of.volume == "" {
		return e, true // a plugin that was restarted is shown to be ready again
	}
	if was.count < firstRepeats || bits.OnesCount(uint(was.count)) != 1 {
		was.held = &e
		return e, false
	}
	was.held = nil
	return was.counted(e), true
}

// heldBack takes what is held back of a subject, which stays remembered.
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

// counted adds how often it was said.
func (w *row) counted(e volume.Event) volume.Event {
	e.Message = fmt.Sprintf("%s (%d times since %s)", e.Message, w.count, w.first.UTC().Format("2006-01-02 15:04:05Z"))
	return e
}

// ended returns what was held back of what repeats no more, oldest first, and
// forgets what is old.
func (r *repeats) ended(now time.Time) []volume.Event {
	return r.take(func(w *row) bool { return now.Sub(w.last) >= endedAfter }, func(w *row) bool { return now.Sub(w.last) > forgottenAfter })
}

// all returns all that is held back, oldest first.
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

// words tells what was held back, the oldest first.
func words(due []*row) []volume.Event {
	slices.SortFunc(due, func(a, b *row) int { return cmp.Compare(a.order, b.order) })
	evs := make([]volume.Event, len(due))
	for i, w := range due {
		evs[i] = w.counted(*w.held)
	}
	return evs
}
