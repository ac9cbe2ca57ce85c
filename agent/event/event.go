// Package event stores events. It keeps the last events in memory, for clients that follow them. It
// keeps the events of seven days in files, for users who search the history. If a failure repeats,
// the package reports it once, and then more and more rarely with a count. A failure that repeats
// all day therefore fills neither the files nor the log of the agent.
//
//	event.go    Log: Add, After, Close
//	ring.go     the last events, in memory
//	repeat.go   limits repeated events
//	disk.go     writes the files, which are limited in age and size
//	read.go     reads the files
package event

import (
	"context"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/volagent/volagent/volmgr/volume"
)

// Event is an event with its time and number.
type Event struct {
	volume.Event
	Time time.Time
	// Seq increases by one with each event. It continues after a restart.
	Seq uint64
}

// Options configures a Log. The zero value keeps events only in memory.
type Options struct {
	// Dir is the directory of the files. Open creates it if it does not exist.
	Dir string
	// MaxBytes is the maximum total size of the files. 0 means 64 MiB.
	MaxBytes int64
	// Told is called once for each event that the log stores. It runs in the goroutine that adds
	// the event, or in the goroutine that reports the end of repetitions. Calls may overlap.
	Told func(Event)
	// Warn is called once when the log cannot write its files. After a successful write, it may be
	// called again.
	Warn func(message string, err error)
}

// Log stores events. It is safe for concurrent use.
type Log struct {
	o    Options
	disk *disk

	mu      sync.Mutex
	ring    ring
	repeats repeats
	sweeper *time.Timer // set while the log may withhold events
	pending []Event     // events that are in no file yet
	inHand  []Event     // the events that the writer is writing
	lost    int         // number of events that did not fit into pending
	closed  bool

	wake chan struct{} // holds one token if an event is pending or closed is set
	over chan struct{} // closed when the writer has ended
}

// maxPending limits the number of events that wait for the writer. If the limit is reached, further
// events do not get into the files.
const maxPending = 16 * ringSize

// maxMessage is the maximum length of a message, in bytes.
const maxMessage = 600

// Open returns a log that continues the log in its directory. If Open cannot use the directory, the
// log keeps events only in memory, and Open calls Warn. An agent without event files is better than
// no agent.
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
		o.Warn("cannot open the event files; the agent keeps events only in memory", err)
		close(l.over)
		return l
	}

	l.disk, l.ring.base, l.ring.seq = d, last, last
	go l.write()
	return l
}

// Add stores events. It never waits for a disk. If the disk is too slow, an event stays in memory
// only.
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

// keep assigns a number to an event and passes it to the ring and the writer. The caller holds mu.
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

// sweepEvery is the interval at which the log checks for repetitions that have stopped.
const sweepEvery = time.Minute

// arm schedules sweep if the log has recorded a repetition. The caller holds mu.
func (l *Log) arm() {
	if l.sweeper == nil && !l.closed && len(l.repeats.rows) > 0 {
		l.sweeper = time.AfterFunc(sweepEvery, l.sweep)
	}
}

// sweep reports the final count of each event that no longer repeats.
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

// After returns the events in memory with a number above seq, oldest first. It also returns a
// channel that is closed when a later event arrives.
func (l *Log) After(seq uint64) ([]Event, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ring.after(seq), l.ring.changed()
}

// Close reports all withheld events, writes the pending events and ends the writer. It returns when
// this is done, or when ctx ends. After Close, the log keeps new events only in memory.
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

// write writes events to the files until Close.
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
			l.o.Warn("cannot write events to files; they are lost", err)
		}

		if len(evs) > 0 {
			failing = err != nil
		}

		if closed {
			if err := l.disk.close(); err != nil && !failing {
				l.o.Warn("cannot close the event file; events may be lost", err)
			}
			return
		}
	}
}

// shorten cuts a message to maxMessage bytes, at the end of a character.
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
