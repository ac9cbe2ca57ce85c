package event

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/volagent/volagent/volmgr/untrusted"
	"github.com/volagent/volagent/volmgr/volume"
)

// Log stores events. It is safe for concurrent use.
type Log struct {
	o    Options
	disk *disk

	mu      sync.Mutex
	ring    ring
	repeats repeats
	sweeper *time.Timer // set while the log may hold back repeated events
	pending []Event     // events that are not written yet
	inHand  []Event     // the events that the writer is writing
	lost    int         // number of events that did not fit into pending
	closed  bool

	wake chan struct{} // contains one token while an event is pending or closed is set
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

	if o.Keep <= 0 {
		o.Keep = keepFor
	}

	d, last, err := openDisk(o.Dir, o.Keep, o.MaxBytes, time.Now())
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

// Close reports all withheld events, writes the pending events and stops the writer. It returns
// when the writer has stopped, or when ctx ends. After Close, the log keeps new events only in
// memory.
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

// Read calls the function each for the selected events, oldest first. It returns the number of the
// last event at the time of the call, and reports no later events. It reads the files line by line,
// and only as far back as necessary. If ctx ends or the function each fails, Read stops and returns
// the error.
func (l *Log) Read(ctx context.Context, f Filter, each func(Event) error) (uint64, error) {
	recent, first, last := l.inMemory()
	matches := 0
	for _, e := range recent {
		if f.Fits(e) {
			matches++
		}
	}

	enough := f.N > 0 && matches >= f.N || len(recent) > 0 && recent[0].Time.Before(f.Since)
	skip := 0
	if f.N > 0 {
		skip = max(0, matches-f.N)
	}

	if l.disk != nil && !enough && first > 1 {
		if err := l.history(ctx, f, first, f.N-matches, each); err != nil {
			return last, err
		}
	}

	for _, e := range recent {
		if !f.Fits(e) {
			continue
		}
		if skip--; skip >= 0 {
			continue
		}
		if err := each(e); err != nil {
			return last, err
		}
	}

	return last, nil
}

// inMemory returns the events that Read does not need to take from files: the last events, and all
// events that are not written yet. It also returns the number of the first and of the last of these
// events.
func (l *Log) inMemory() (recent []Event, first, last uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()

	first, last = l.ring.first(), l.ring.seq
	for _, waiting := range [][]Event{l.inHand, l.pending} {
		for _, e := range waiting {
			if e.Seq < l.ring.first() {
				recent = append(recent, e)
			}
		}
	}

	if len(recent) > 0 {
		first = recent[0].Seq
	}

	return append(recent, l.ring.after(0)...), first, last
}

// history calls the function each for the events in the files with a number less than below. If the
// filter selects only the last N events, history first counts events from the end, to find the file
// with the first selected event.
func (l *Log) history(ctx context.Context, f Filter, below uint64, want int, each func(Event) error) error {
	names, err := files(l.disk.dir)
	if err != nil {
		return err
	}

	if !f.Since.IsZero() {
		day := f.Since.UTC().Format(time.DateOnly)
		for len(names) > 0 && dayOf(names[0]) < day {
			names = names[1:]
		}
	}

	skip := 0
	if f.N > 0 {
		found, from := 0, len(names)
		for from > 0 && found < want {
			from--
			if err := l.scan(ctx, names[from], f, below, func(Event) error { found++; return nil }); err != nil {
				return err
			}
		}

		names, skip = names[from:], max(0, found-want)
	}

	for _, name := range names {
		err := l.scan(ctx, name, f, below, func(e Event) error {
			if skip--; skip >= 0 {
				return nil
			}
			return each(e)
		})
		if err != nil {
			return err
		}
	}

	return nil
}

// scan calls the function each for the events of one file. If the file has been deleted in the
// meantime, because it became too old, scan reports no events.
func (l *Log) scan(ctx context.Context, name string, f Filter, below uint64, each func(Event) error) error {
	file, err := untrusted.Open(filepath.Join(l.disk.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read events: %w", err)
	}
	defer file.Close() //nolint:errcheck // the file was only read

	err = eachLine(file, func(raw []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}

		l, ok := parse(raw)
		if e := l.event(); ok && e.Seq < below && f.Fits(e) {
			return each(e)
		}

		return nil
	})
	var failed *fs.PathError
	if errors.As(err, &failed) {
		return fmt.Errorf("cannot read events: %w", err)
	}

	return err
}
