// Package event keeps what happened: the last transitions in memory, for those
// who follow, and seven days of them in files, for people who ask. A failure
// that repeats is told once, and then ever more rarely with a count, so that a
// day of it fills neither the files nor the agent's log.
//
//	event.go    Log: Add, After, Close
//	ring.go     the last events, in memory
//	repeat.go   what is held back
//	disk.go     the files: one a day, bounded in age and size
//	read.go     reading them again
package event

import (
	"context"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/volagent/volagent/volmgr/volume"
)

// Event is a transition with its time and number.
type Event struct {
	volume.Event
	Time time.Time
	// Seq grows by one an event, over restarts too.
	Seq uint64
}

// Options of a Log. The zero value keeps events in memory alone.
type Options struct {
	// Dir holds the files; it is made if it is not there.
	Dir string
	// MaxBytes is how large they may be in all; 0 is 64 MiB.
	MaxBytes int64
	// Told is called once for each event that is kept, by whoever added it or by
	// the sweep; calls may overlap.
	Told func(Event)
	// Warn is told once when files cannot be written, until they can be again.
	Warn func(message string, err error)
}

// Log keeps events. It is safe for concurrent use.
type Log struct {
	o    Options
	disk *disk

	mu      sync.Mutex
	ring    ring
	repeats repeats
	sweeper *time.Timer // runs while something may be held back
	pending []Event     // not in a file yet
	inHand  []Event     // being written
	lost    int         // that found no room in pending
	closed  bool

	wake chan struct{} // holds one token: there is something pending, or closed is set
	over chan struct{} // closed when the writer has ended
}

// maxPending bounds what waits to be written; beyond it events are lost to the files.
const maxPending = 16 * ringSize

// maxMessage bounds what is kept of an event's words, in bytes.
const maxMessage = 600

// Open returns a log that goes on from what its directory holds. One whose
// directory cannot be used keeps events in memory, and says so through Warn:
// an agent without events is better than none.
func Open(o Options) *Log {
	if o.Told == nil {
		o.Told = func(Event) {}
	}
	if o.Warn == nil {
		o.Warn = func(string, error) {}
	}
	l := &Log{o: o, wake: make(chan struct{}, 1), over: make(chan struct{})}
	if o.Dir == "" {
		close(l.over)
		return l
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = maxTotal
	}
	d, last, err := openDisk(o.Dir, o.MaxBytes, time.Now())
	if err != nil {
		o.Warn("events are kept in memory only", err)
		close(l.over)
		return l
	}
	l.disk, l.ring.base, l.ring.seq = d, last, last
	go l.write()
	return l
}

// Add keeps events. It never waits for a disk: an event that cannot be written
// in time is lost to the files, and to nothing else.
func (l *Log) Add(evs ...volume.Event) {
	if len(evs) == 0 {
		return
	}
	now := time.Now().UTC()
	l.mu.Lock()
	var told []Event
	for _, e := range evs {
		e.Message = shorten(e.Message)
		for _, e := range l.repeats.pass(e, now) {
			told = append(told, l.keep(e, now))
		}
	}
	l.arm()
	l.mu.Unlock()
	l.tell(told)
}

// keep numbers an event and hands it to ring and writer; mu is held.
func (l *Log) keep(e volume.Event, at time.Time) Event {
	ev := l.ring.add(e, at)
	switch {
	case l.disk == nil || l.closed:
	case len(l.pending) >= maxPending:
		l.lost++
	default:
		l.pending = append(l.pending, ev)
	}
	return ev
}

func (l *Log) tell(told []Event) {
	if len(told) == 0 {
		return
	}
	l.poke()
	for _, ev := range told {
		l.o.Told(ev)
	}
}

func (l *Log) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// sweepEvery is how often it is looked at whether what was held back has ended.
const sweepEvery = time.Minute

// arm has sweep called while there is anything to look after; mu is held.
func (l *Log) arm() {
	if l.sweeper == nil && !l.closed && len(l.repeats.rows) > 0 {
		l.sweeper = time.AfterFunc(sweepEvery, l.sweep)
	}
}

// sweep tells how often that was repeated which repeats no more.
func (l *Log) sweep() {
	now := time.Now().UTC()
	l.mu.Lock()
	var told []Event
	for _, e := range l.repeats.ended(now) {
		told = append(told, l.keep(e, now))
	}
	l.sweeper = nil
	l.arm()
	l.mu.Unlock()
	l.tell(told)
}

// After returns the events in memory with a number above seq, the oldest
// first, and a channel that is closed when there are more.
func (l *Log) After(seq uint64) ([]Event, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ring.after(seq), l.ring.changed()
}

// Close tells what is still held back, writes what is pending and ends the
// writer. It returns when that is done or ctx ends. Events that come later are
// kept in memory only.
func (l *Log) Close(ctx context.Context) {
	now := time.Now().UTC()
	l.mu.Lock()
	var told []Event
	if !l.closed {
		for _, e := range l.repeats.all() {
			told = append(told, l.keep(e, now))
		}
	}
	l.closed = true
	if l.sweeper != nil {
		l.sweeper.Stop()
	}
	l.mu.Unlock()
	l.tell(told)
	l.poke()
	select {
	case <-l.over:
	case <-ctx.Done():
	}
}

// write puts events into files until Close.
func (l *Log) write() {
	defer close(l.over)
	failing := false
	for range l.wake {
		l.mu.Lock()
		evs, lost, closed := l.pending, l.lost, l.closed
		l.pending, l.inHand, l.lost = nil, evs, 0
		l.mu.Unlock()
		err := l.disk.write(evs)
		l.mu.Lock()
		l.inHand = nil
		l.mu.Unlock()
		if err == nil && lost > 0 {
			err = errSlow
		}
		if err != nil && !failing {
			l.o.Warn("events are lost: they cannot be written to files", err)
		}
		if len(evs) > 0 {
			failing = err != nil
		}
		if closed {
			if err := l.disk.close(); err != nil && !failing {
				l.o.Warn("events may be lost", err)
			}
			return
		}
	}
}

// shorten cuts words to what is kept, between characters.
func shorten(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	const mark = "…"
	cut := maxMessage - len(mark)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + mark
}
